// Questions to the explorer; a failure is a sentence.

export class Failure extends Error {
  constructor(sentence, status) {
    super(sentence);
    this.status = status; // 0 where nobody answered
  }
}

async function ask(path, parameters, settings) {
  const query = new URLSearchParams(parameters).toString();
  let response;
  try {
    response = await fetch(`/api/${path}${query ? `?${query}` : ""}`, settings);
  } catch {
    throw new Failure("The explorer does not answer. It may have been stopped.", 0);
  }
  let answer;
  try {
    answer = await response.json();
  } catch {
    throw new Failure("The explorer's answer was cut off.", 0);
  }
  if (!response.ok) throw new Failure(sentence(answer.error), response.status);
  return answer;
}

function sentence(text) {
  const whole = String(text || "the explorer failed.");
  return whole[0].toUpperCase() + whole.slice(1);
}

export const get = (path, parameters = {}) => ask(path, parameters, {});
export const send = (path, body) => ask(path, {}, { method: "POST", body });
