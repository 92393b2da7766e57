// Writes a hash of all sources beside what was built from them. A test without Node tells by it whether the two belong together.
// The specs in examples/ are sources, too: the form offers them as templates.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const isSource = (name) => !name.startsWith("node_modules/") && name !== "src/api/schema.ts";
const names = readdirSync(".", { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => `${entry.parentPath ?? entry.path}/${entry.name}`.replaceAll("\\", "/").replace(/^\.\//, ""))
  .filter(isSource)
  .sort((a, b) => (a < b ? -1 : 1));
const hash = createHash("sha256");
for (const name of names) hash.update(`${name}\0`).update(readFileSync(name)).update("\0");
const recipes = readdirSync("../examples", { recursive: true }).map((name) => name.replaceAll("\\", "/")).filter((name) => /^[^/]+\/[^/]+\.json$/.test(name));
for (const name of recipes.sort((a, b) => (a < b ? -1 : 1))) hash.update(`examples/${name}\0`).update(readFileSync(`../examples/${name}`)).update("\0");
writeFileSync("../service/dashboard/sources.sha256", `${hash.digest("hex")}\n`);
