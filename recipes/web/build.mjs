// Puts the page together: a folder that any file server can serve.
//
//     npm ci
//     npm run build -- OUTPUT MODEL [MODEL ...] [--dtype q8|fp16|fp32]
//
// OUTPUT is made, or replaced where this script made it. Each MODEL is a published folder with its ONNX files:
//     bert-repro export_onnx --folder MODEL --dtypes q8
import { copyFileSync, existsSync, mkdirSync, readFileSync, readdirSync, rmSync, statSync, writeFileSync } from "node:fs";
import { basename, dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";

export const FILES = { fp32: "model.onnx", fp16: "model_fp16.onnx", q8: "model_quantized.onnx" };
export const TASKS = {
  ForMaskedLM: "fill-mask", ForPreTraining: "fill-mask", ForSequenceClassification: "text-classification",
  ForTokenClassification: "token-classification", ForQuestionAnswering: "question-answering",
};
const HERE = dirname(fileURLToPath(import.meta.url));
const VENDOR = {
  "transformers.web.min.js": ["@huggingface/transformers", "dist/transformers.web.min.js"],
  "ort.wasm.bundle.min.mjs": ["onnxruntime-web", "dist/ort.wasm.bundle.min.mjs"],
  "ort-wasm-simd-threaded.wasm": ["onnxruntime-web", "dist/ort-wasm-simd-threaded.wasm"],
  "LICENSE.transformers.js": ["@huggingface/transformers", "LICENSE"],
};

class UserError extends Error {}

export function build(output, models, dtype = "q8") {
  if (!(dtype in FILES)) throw new UserError(`--dtype is ${dtype}; it must be one of: ${Object.keys(FILES).join(", ")}`);
  if (!output || !models.length) throw new UserError("usage: npm run build -- OUTPUT MODEL [MODEL ...] [--dtype q8|fp16|fp32]");
  const entries = models.map((folder) => describe(folder, dtype));
  const twice = entries.find(({ name }, index) => entries.findIndex((other) => other.name === name) !== index);
  if (twice) throw new UserError(`two models are called ${twice.name}; rename one folder`);
  empty(output);
  let runtimeBytes = 0;
  for (const [name, [from, path]] of Object.entries(VENDOR)) {
    copy(join(packageFolder(from), path), join(output, "vendor", name));
    if (!name.startsWith("LICENSE")) runtimeBytes += statSync(join(output, "vendor", name)).size;
  }
  for (const { name, folder, files } of entries) for (const file of files) copy(join(folder, file), join(output, "models", name, file));
  for (const name of ["index.html", "README.md"]) copy(join(HERE, name), join(output, name));  // a Space reads the README
  const listed = entries.map(({ name, task, bytes, texts, longest }) =>
    ({ name, task, dtype, bytes, texts, longest, runtime_bytes: runtimeBytes }));
  writeFileSync(join(output, "models.json"), JSON.stringify(listed, null, 2) + "\n");
  return listed;
}

function describe(folder, dtype) {
  const config = join(folder, "config.json");
  if (!existsSync(config)) throw new UserError(`${folder}: not a published folder (config.json is missing)`);
  const { architectures, max_position_embeddings: positions } = JSON.parse(readFileSync(config, "utf-8"));
  const [head] = architectures ?? ["no class"];
  const task = Object.entries(TASKS).find(([ending]) => head.endsWith(ending))?.[1];
  if (!task) throw new UserError(`${folder}: holds ${head}, which this page has no field for; it takes ${Object.keys(TASKS).join(", ")}`);
  const files = ["config.json", "tokenizer.json", "tokenizer_config.json", `onnx/${FILES[dtype]}`];
  const lacking = files.find((file) => !existsSync(join(folder, file)));
  if (lacking?.startsWith("onnx/"))
    throw new UserError(`${folder}: ${lacking} is missing; run: bert-repro export_onnx --folder ${folder} --dtypes ${dtype}`);
  if (lacking) throw new UserError(`${folder}: ${lacking} is missing; export the model again`);
  const texts = task === "text-classification" ? textColumns(folder) : null;
  const bytes = files.reduce((sum, file) => sum + statSync(join(folder, file)).size, 0);
  // Positions beyond what the tokenizer truncates at were not trained.
  const { model_max_length: trained } = JSON.parse(readFileSync(join(folder, "tokenizer_config.json"), "utf-8"));
  return { name: basename(resolve(folder)), folder, task, files, bytes, texts, longest: Math.min(trained ?? positions, positions) };
}

// How many texts a classifier reads, 1 or 2, as its run says; null: it is not known.
function textColumns(folder) {
  const results = join(folder, "results.json");
  return (existsSync(results) && JSON.parse(readFileSync(results, "utf-8")).data?.text_columns?.length) || null;
}

// onnxruntime-web is a dependency of transformers.js; npm may put it beside or below.
function packageFolder(name) {
  const places = [join(HERE, "node_modules"), join(HERE, "node_modules/@huggingface/transformers/node_modules")];
  const found = places.map((place) => join(place, name)).find(existsSync);
  if (!found) throw new UserError(`the package ${name} is not installed; run npm ci in ${HERE}`);
  return found;
}

function empty(output) {
  const left = existsSync(output) ? readdirSync(output) : [];
  if (left.length && !left.includes("models.json")) throw new UserError(`${output}: is not empty and was not made by this script; name another folder`);
  for (const name of ["index.html", "README.md", "models.json", "vendor", "models"]) rmSync(join(output, name), { recursive: true, force: true });
}

function copy(from, to) {
  mkdirSync(dirname(to), { recursive: true });
  copyFileSync(from, to);
}

if (resolve(process.argv[1] ?? "") === fileURLToPath(import.meta.url)) {
  try {
    const { values, positionals } = parseArgs({ allowPositionals: true, options: { dtype: { type: "string", default: "q8" } } });
    const [output, ...models] = positionals;
    for (const { name, task, bytes, runtime_bytes: runtime } of build(output, models, values.dtype))
      console.log(`${name}: ${task}, ${(bytes / 1e6).toFixed(1)} MB, and ${(runtime / 1e6).toFixed(1)} MB of runtime`);
    console.log(`serve it with any file server: python -m http.server --directory ${output}`);
  } catch (error) {
    if (!(error instanceof UserError) && error.code !== "ERR_PARSE_ARGS_UNKNOWN_OPTION") throw error;
    console.error(error.message);
    process.exitCode = 2;
  }
}
