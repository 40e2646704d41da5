// The page in headless Chromium, at desktop and phone width: every model answers as in Python, every fault has a message.
//
//     node tests/browser.mjs SITE SCREENSHOTS [MODELS]
//
// SITE is what build.mjs made. MODELS holds expected.json per model, as for node.mjs; without it, any answer will do.
// CHROMIUM names the browser; default: Debian's /usr/bin/chromium.
import assert from "node:assert/strict";
import { createReadStream, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { extname, join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { createGzip } from "node:zlib";
import { chromium } from "playwright-core";

const [site, screenshots, expectations] = process.argv.slice(2).map((name) => resolve(name));
const CHROMIUM = process.env.CHROMIUM ?? "/usr/bin/chromium";
const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];
const WIDTHS = { desktop: [1280, 900], phone: [390, 844] };
const TYPES = {
  ".html": "text/html", ".js": "text/javascript", ".mjs": "text/javascript", ".json": "application/json",
  ".wasm": "application/wasm",
};
const PATIENCE = 240_000;  // ms
const models = JSON.parse(readFileSync(join(site, "models.json"), "utf-8"));

// A plain file server, which counts what it sends and can lose a file.
const sent = { bytes: 0, lost: null, gzip: false };
const server = createServer((request, response) => {
  const path = new URL(request.url, "http://localhost").pathname.replace(/\/$/, "/index.html");
  const file = join(site, path);
  if (!existsSync(file) || path === sent.lost) return response.writeHead(404).end("not found");
  const headers = { "content-type": TYPES[extname(file)] ?? "application/octet-stream", "cache-control": "no-store" };
  if (!sent.gzip) {
    sent.bytes += statSync(file).size;
    return response.writeHead(200, { ...headers, "content-length": statSync(file).size }) && createReadStream(file).pipe(response);
  }
  response.writeHead(200, { ...headers, "content-encoding": "gzip" });
  createReadStream(file).pipe(createGzip()).on("data", (part) => (sent.bytes += part.length)).pipe(response);
});
await new Promise((ready) => server.listen(0, "127.0.0.1", ready));
const address = `http://127.0.0.1:${server.address().port}/`;
const profile = mkdtempSync(join(tmpdir(), "bert-repro-web-"));
mkdirSync(screenshots, { recursive: true });
const browser = await chromium.launchPersistentContext(profile, { executablePath: CHROMIUM, args: FLAGS, headless: true });

async function open(width, height, path = "", prepare = null) {
  const page = await browser.newPage();
  page.setDefaultTimeout(PATIENCE);
  await page.setViewportSize({ width, height });
  page.faults = [];
  page.on("request", (request) => { if (!request.url().startsWith(address) && !/^(blob|data):/.test(request.url())) page.faults.push(`asked for ${request.url()}`); });
  page.on("pageerror", (error) => page.faults.push(String(error)));
  if (prepare) await page.addInitScript(prepare);
  await page.goto(address + path);
  return page;
}

const message = (page) => page.getByRole("alert").filter({ visible: true });
const rows = (page) => page.locator("#answer li");

async function run(page) {
  await page.locator("#run").click();
  await page.locator("#answer h2, #message:not([hidden])").first().waitFor();
  await page.locator("#run:not([aria-disabled])").waitFor();
}

async function shoot(page, name) {
  const [wide, room] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(wide <= room, `${name}: the page is ${wide} wide, the screen ${room}`);
  await page.screenshot({ path: join(screenshots, `${name}.png`), fullPage: true });
}

async function answers(name, width, height) {
  for (const { name: model, task, longest } of models) {
    const page = await open(width, height, `?model=${model}`);
    await page.locator("#run").waitFor();
    await shoot(page, `${name}-${model}-start`);
    const record = expectations && join(expectations, model, "expected.json");
    const expected = record && existsSync(record) ? JSON.parse(readFileSync(record, "utf-8")) : null;
    if (expected) for (const [index, text] of expected.inputs.entries()) await page.locator(`#text-${index}`).fill(text);
    await run(page);
    assert.equal(await message(page).count(), 0, `${model}: ${await page.locator("#message").textContent()}`);
    const text = (await page.locator("#answer").innerText()).replace(/\s+/g, " ");
    console.log(`${name}, ${model}: ${text.slice(0, 160)}`);
    if (expected && task === "token-classification")
      for (const [label] of expected.answer) assert.ok(text.includes(label.replace(/^[BI]-/, "")), `${model}: no ${label}`);
    else if (expected) assert.equal(await rows(page).first().locator("span").first().textContent(), expected.answer[0][0], model);
    await shoot(page, `${name}-${model}`);
    await page.locator("#text-0").fill("  ");
    await run(page);
    assert.match(await message(page).textContent(), /a field is empty/);
    assert.equal(await page.locator("#answer").textContent(), "", "an old answer stays");
    assert.equal(await page.evaluate(() => document.activeElement.id), "text-0");
    await page.locator("#text-0").fill("word ".repeat(600));
    await run(page);
    if (task === "fill-mask") assert.match(await message(page).textContent(), /Write \[MASK\] once/);
    else if (task !== "question-answering") assert.ok((await message(page).textContent()).includes(`tokens; this model reads at most ${longest} at once`));
    await shoot(page, `${name}-${model}-message`);
    assert.deepEqual(page.faults, []);
    await page.close();
  }
}

// Keyboard alone: from the top of the page to an answer.
async function keyboard() {
  const page = await open(...WIDTHS.desktop);
  await page.locator("#run").waitFor();
  for (let presses = 0; (await page.evaluate(() => document.activeElement.id)) !== "text-0"; presses++) {
    assert.ok(presses < 5, "the field is not reached by Tab");
    await page.keyboard.press("Tab");
  }
  await page.keyboard.press("Control+Enter");
  await page.locator("#answer h2").waitFor();
  const unnamed = await page.evaluate(() => [...document.querySelectorAll("select, textarea, progress")].filter(({ labels }) => !labels.length).length);
  assert.equal(unnamed, 0, "a control has no label");
  await page.close();
}

async function faults() {
  const cases = [
    ["models.json missing", "/models.json", null, /models.json is missing/, false],
    ["model missing", `/models/${models[0].name}/onnx/model_quantized.onnx`, null, /model_quantized.onnx is missing on the server \(404\)/, true],
    ["tokenizer missing", `/models/${models[0].name}/tokenizer.json`, null, /tokenizer.json is missing on the server \(404\)/, true],
    ["runtime missing", "/vendor/ort-wasm-simd-threaded.wasm", null, /ort-wasm-simd-threaded.wasm is missing/, true],
    ["library missing", "/vendor/transformers.web.min.js", null, /vendor\/ is incomplete/, true],
    ["no WebAssembly", null, "delete globalThis.WebAssembly", /has no WebAssembly/, false],
  ];
  for (const [name, lost, prepare, expected, asks] of cases) {
    sent.lost = lost;
    const page = await open(...WIDTHS.phone, "", prepare);
    if (asks) await run(page);
    await message(page).waitFor();
    const shown = await message(page).textContent();
    console.log(`${name}: ${shown}`);
    assert.match(shown, expected);
    await shoot(page, `fault-${name.replaceAll(" ", "-")}`);
    sent.lost = null;
    if (name === "model missing") {  // the file is back: the next press works, without a reload
      await run(page);
      assert.equal(await rows(page).count() > 0, true);
    }
    await page.close();
  }
}

// Opened from disk, without any server.
async function fromDisk() {
  const page = await browser.newPage();
  await page.goto(pathToFileURL(join(site, "index.html")).href);
  assert.match(await message(page).textContent(), /python -m http.server/);
  await page.close();
}

// From an empty cache: opening the page, pressing the button, reading the answer.
async function measure() {
  for (const gzip of [false, true]) for (const { name, task } of models) {
    Object.assign(sent, { bytes: 0, gzip });
    const began = performance.now();
    const page = await open(...WIDTHS.desktop, `?model=${name}`);
    await page.locator("#run").waitFor();
    const opened = performance.now() - began;
    await run(page);
    const first = performance.now() - began, bytes = sent.bytes, times = [];
    for (let repeat = 0; repeat < 5; repeat++) {
      await run(page);
      times.push(Number((await page.locator("#answer .soft").textContent()).match(/(\d+) ms/)[1]));
    }
    console.log(`${name} (${task})${gzip ? ", gzip" : ""}: page ${Math.round(opened)} ms, first answer ${Math.round(first)} ms, ` +
      `${(bytes / 1e6).toFixed(1)} MB, later answers ${times.sort((a, b) => a - b)[2]} ms`);
    await page.close();
  }
  sent.gzip = false;
}

try {
  for (const [name, [width, height]] of Object.entries(WIDTHS)) await answers(name, width, height);
  await keyboard();
  await faults();
  await fromDisk();
  await measure();
  console.log(`every model answered, every fault had its message, nothing was asked of another host; screenshots: ${screenshots}`);
} finally {
  await browser.close();
  server.close();
  rmSync(profile, { recursive: true, force: true });
}
