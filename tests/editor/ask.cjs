// Answers questions about schemas, as JSON from standard input to standard output.
//
// {"ajv": schema, "values": [...]}        -> {"error": text or null, "valid": [true or false, ...]}
// {"editor": schema, "text": "...|..."}   -> {"problems": [...], "completions": [...], "hover": text or null}
// {"file": path}                          -> {"problems": [...]}, by the schema that the file names itself
//
// The bar in a text is the cursor: it is taken out before the text is looked at.
"use strict";

const { readFileSync } = require("node:fs");
const { fileURLToPath, pathToFileURL } = require("node:url");
const Ajv = require("ajv/dist/2020");
const { getLanguageService, TextDocument } = require("vscode-json-languageservice");

// keywords of our own, and one of VS Code's
const NOTES = ["x-severity", "x-outcome", "x-unit", "x-only-if", "x-coerced", "deprecationMessage"];

function ajv({ ajv: schema, values }) {
  const validator = new Ajv({ strict: true, allowUnionTypes: true, keywords: NOTES, logger: false });
  try {
    const validate = validator.compile(schema);
    return { error: null, valid: values.map((value) => validate(value)) };
  } catch (error) {
    return { error: error.message, valid: [] };
  }
}

async function editor({ editor: schema, text }) {
  const at = text.indexOf("|");
  const plain = at < 0 ? text : text.slice(0, at) + text.slice(at + 1);
  const service = getLanguageService({});
  service.configure({ validate: true, schemas: [{ uri: schema.$id, fileMatch: ["*"], schema }] });
  const document = TextDocument.create("file:///asked.json", "json", 1, plain);
  const tree = service.parseJSONDocument(document);
  const problems = (await service.doValidation(document, tree)).map((problem) => problem.message);
  if (at < 0) return { problems, completions: [], hover: null };
  const position = document.positionAt(at);
  const { items } = (await service.doComplete(document, position, tree)) ?? { items: [] };
  const completions = items.map((item) => ({ label: item.label, text: item.textEdit?.newText ?? item.insertText }));
  const hover = await service.doHover(document, position, tree);
  return { problems, completions, hover: hover === null ? null : [hover.contents].flat().join("\n") };
}

async function file({ file: path }) {
  const service = getLanguageService({
    schemaRequestService: async (uri) => readFileSync(fileURLToPath(uri), "utf-8"),
    workspaceContext: { resolveRelativePath: (relative, base) => new URL(relative, base).href },
  });
  service.configure({ validate: true });
  const document = TextDocument.create(pathToFileURL(path).href, "json", 1, readFileSync(path, "utf-8"));
  const found = await service.doValidation(document, service.parseJSONDocument(document));
  return { problems: found.map((problem) => problem.message) };
}

function answer(question) {
  if ("ajv" in question) return ajv(question);
  return "file" in question ? file(question) : editor(question);
}

async function main() {
  const questions = JSON.parse(readFileSync(0, "utf-8"));
  process.stdout.write(JSON.stringify(await Promise.all(questions.map(answer))));
}

main();
