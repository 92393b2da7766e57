// Reads a job that has succeeded, its events, checkpoints and model, and prints what the SDK has read.
import OpenAI from "openai";

const client = new OpenAI({ maxRetries: 0 });
const job = await client.fineTuning.jobs.retrieve(process.argv[2]);
const messages = [];
for await (const event of client.fineTuning.jobs.listEvents(job.id, { limit: 2 })) messages.push(event.message);
const steps = [];
for await (const checkpoint of client.fineTuning.jobs.checkpoints.list(job.id, { limit: 1 })) steps.push(checkpoint.step_number);
const models = [];
for await (const model of client.models.list()) models.push(model.id);
const model = await client.models.retrieve(job.fine_tuned_model);
const deleted = await client.models.delete(model.id);
const missing = await client.models.retrieve(model.id).catch((error) => error);

console.log(JSON.stringify({
  status: job.status,
  model: model.id,
  isListed: models.includes(model.id),
  messages,
  steps,
  deleted: deleted.deleted,
  missing: [missing instanceof OpenAI.NotFoundError, missing.code],
}));
