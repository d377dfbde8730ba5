// @ts-check
// Requests to the service.

/** The states of a search that is under way. */
export const BUSY = ["queued", "starting", "running", "stopping"];

// The cookie alone may not start a search, because the browser sends it to every port of this host. The key from the
// sign-in page stays in this page's storage.
/** @returns {Record<string, string>} */
export function key() {
  try {
    if (location.hash.startsWith("#key=")) {
      localStorage.setItem("tuner-key", location.hash.slice(5));
      history.replaceState(null, "", "/");
    }
    return { "X-Tuner-Key": localStorage.getItem("tuner-key") ?? "" };
  } catch {
    return {}; // the browser blocks storage: the user cannot sign in and may only read
  }
}

/** Sends a GET request. Repeats it when the service asks for that, because it reads a long journal in parts, one for
 * each request.
 * @param {string} path @param {Record<string, string>} headers @returns {Promise<any>} */
export async function get(path, headers = {}) {
  const answer = await fetch(path, { headers });
  const again = answer.status === 503 && Number(answer.headers.get("Retry-After"));
  if (again) {
    await new Promise((resolve) => setTimeout(resolve, 1000 * again));
    return get(path, headers);
  }
  const body = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(body.error), { status: answer.status });
  return body;
}

/** Sends a POST request with the session's key.
 * @param {string} path @param {object} body @returns {Promise<any>} */
export function post(path, body) {
  return send(path, { method: "POST", body: JSON.stringify(body), headers: { "Content-Type": "application/json", ...key() } });
}

const SIGNED_OUT = "you are signed out: the service was restarted, or 12 hours have passed. Sign in with the link that the "
  + "service prints when it starts, in this window or another one, and try again; what you typed stays here";

/** @param {string} path @param {RequestInit} request */
async function send(path, request) {
  const answer = await fetch(path, request).catch(() => { throw new Error("the service does not answer; is tuner.serve running?"); });
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(answer.status === 401 ? SIGNED_OUT : content.error), { status: answer.status });
  return content;
}

/** Sends a DELETE request with the session's key.
 * @param {string} path @returns {Promise<any>} */
export function remove(path) {
  return send(path, { method: "DELETE", headers: key() });
}

/** @param {string} name */
export const pathOf = (name) => `/api/experiments/${encodeURIComponent(name)}`;
