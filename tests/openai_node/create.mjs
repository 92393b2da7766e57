// Makes a file, a job and others, lists them page by page, and prints what the SDK has read.
import OpenAI, { toFile } from "openai";

const client = new OpenAI({ maxRetries: 0 });
const row = JSON.stringify({ messages: [{ role: "user", content: "2 + 2?" }, { role: "assistant", content: "4" }] });
const file = await client.files.create({ file: await toFile(Buffer.from(`${row}\n`.repeat(10)), "rows.jsonl"), purpose: "fine-tune" });
const processed = await client.files.waitForProcessing(file.id);
const content = await (await client.files.content(file.id)).text();

const jobs = [];
for (const suffix of ["one", "two", "three"]) {
  jobs.push(await client.fineTuning.jobs.create({
    model: process.argv[2],
    training_file: file.id,
    suffix,
    seed: 7,
    metadata: { team: suffix },
    method: { type: "supervised", supervised: { hyperparameters: { n_epochs: "auto" } } },
  }));
}
const listed = [];
for await (const job of client.fineTuning.jobs.list({ limit: 1 })) listed.push(job.id);
const paused = await client.fineTuning.jobs.pause(jobs[0].id);
const resumed = await client.fineTuning.jobs.resume(jobs[0].id);
const cancelled = await client.fineTuning.jobs.cancel(jobs[1].id);

const refused = await client.fineTuning.jobs.create({ model: "gpt-9", training_file: file.id }).catch((error) => error);

console.log(JSON.stringify({
  file: [file.object, file.purpose, processed.status, content.split("\n").length - 1],
  jobs: jobs.map((job) => job.id),
  listed,
  statuses: [jobs[0].status, paused.status, resumed.status, cancelled.status],
  metadata: jobs[2].metadata,
  refused: [refused instanceof OpenAI.NotFoundError, refused.status, refused.code],
}));
