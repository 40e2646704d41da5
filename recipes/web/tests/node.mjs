// Models in Node with transformers.js: every type of weights, every task, against what transformers answered in Python.
//
//     node tests/node.mjs MODELS        # a folder of published folders, each with expected.json beside its files
//
// expected.json: {"task", "inputs": [...], "answer": [[label, score], ...]}, of the same model in float32.
import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { join, resolve } from "node:path";
import { env, pipeline } from "@huggingface/transformers";
import { FILES } from "../build.mjs";

// Of a probability. 8-bit weights are another model; what its scores are is in onnx/report.json.
const TOLERANCE = { fp32: 1e-3, fp16: 2e-2, q8: 0.3 };
const ASK = {
  "fill-mask": async (run, [text]) => (await run(text, { top_k: 1 })).map(({ token_str, score }) => [token_str, score]),
  "text-classification": async (run, [text]) => (await run(text, { top_k: null })).map(({ label, score }) => [label, score]),
  "token-classification": async (run, [text]) =>
    (await run(text, { ignore_labels: ["O"] })).map(({ entity, score }) => [entity, score]),
  "question-answering": async (run, [passage, question]) => [[(await run(question, passage)).answer, null]],
};

const root = resolve(process.argv[2]);
Object.assign(env, { allowRemoteModels: false, localModelPath: root, useFSCache: false });
const names = readdirSync(root).filter((name) => existsSync(join(root, name, "expected.json")));
assert.ok(names.length, `no model with expected.json in ${root}`);
for (const name of names) {
  const { task, inputs, answer } = JSON.parse(readFileSync(join(root, name, "expected.json"), "utf-8"));
  for (const dtype of Object.keys(FILES)) {
    const run = await pipeline(task, name, { dtype });
    const found = await ASK[task](run, inputs);
    console.log(`${name} ${dtype}: ${found.slice(0, 3).map(([label, score]) => `${label} ${score?.toFixed(4) ?? ""}`).join(", ")}`);
    assert.equal(found.length > 0, answer.length > 0);
    for (const [index, [label, score]] of answer.slice(0, found.length).entries()) {
      // transformers.js puts an answer together from its tokens, which an uncased model has in lower case.
      const same = found[index][0] === label || (task === "question-answering" && found[index][0] === label.toLowerCase());
      if (dtype === "fp32" || index === 0) assert.ok(same, `${name} ${dtype}: answer ${index} is ${found[index][0]}, in Python ${label}`);
      if (score !== null && found[index][0] === label)
        assert.ok(Math.abs(found[index][1] - score) <= TOLERANCE[dtype], `${name} ${dtype}: ${label} ${found[index][1]}, PyTorch ${score}`);
    }
    await run.dispose();
  }
}
console.log(`${names.length} models answered in Node as in Python`);
