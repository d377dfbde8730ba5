// @ts-check
// What users add to an experiment and do with it as a whole: tags, notes, archive, deletion, downloads.

import { act, session } from "./control.js";
import { at, attempt, bytes, counted, el, set, tell } from "./dom.js";
import { BUSY, numTrials, shown } from "./experiment.js";
import { get, pathOf, post, remove } from "./service.js";

/** @typedef {import("./api.js").Summary} Summary */

const notesForm = at("notes-form", HTMLFormElement), deleteForm = at("delete-form", HTMLFormElement);
const dialog = at("delete-dialog", HTMLDialogElement), typed = at("typed-name", HTMLInputElement);
const tags = at("own-tags", HTMLInputElement), notes = at("own-notes", HTMLTextAreaElement);
/** The experiment and the saved labels that the form was filled with.
 * @type {{name: string, tags: string[], notes: string}} */
let filled = { name: "", tags: [], notes: "" };
const CONFLICT = 409;
let offered = ""; // the experiment and state whose files are offered

/** @param {Summary} summary */
export function showLabels(summary) {
  const { name } = summary, isOther = filled.name !== name;
  const isTyped = !isOther && (tags.value !== filled.tags.join(" ") || notes.value !== filled.notes);
  tell("tags", summary.tags.length ? `Tags: ${summary.tags.join(", ")}` : "");
  tell("notes", summary.notes);
  tell("notes-error", summary.notes_error);
  at("archived").hidden = !summary.archived;
  at("report-link", HTMLAnchorElement).href = `${pathOf(name)}/report`;
  const isBusy = BUSY.includes(summary.state), hasFolder = summary.started !== null || summary.lines > 0;
  at("manage").hidden = !(session.isSignedIn || isTyped) || (isBusy && !hasFolder);
  notesForm.hidden = at("archive").hidden = !hasFolder;
  set(at("archive"), summary.archived ? "Show in the list again" : "Archive");
  if (isOther) for (const id of ["notes-status", "archive-status"]) set(at(id), "");
  if (!isTyped) { // else an update would overwrite what the user types
    filled = summary;
    tags.value = summary.tags.join(" ");
    notes.value = summary.notes;
  }
  at("delete", HTMLButtonElement).disabled = isBusy;
  at("delete").title = isBusy ? "not while the search is queued or running; stop it first" : "";
  const key = `${name} ${summary.state} ${summary.lines}`;
  if (offered !== key) {
    if (!offered.startsWith(`${name} `)) at("downloads").hidden = true;
    offered = key;
    if (summary.best && !isBusy) attempt(() => offer(name));
  }
}

/** Names an experiment that cannot be read, and offers to delete a damaged one; the page shows the reason above.
 * @param {string} name @param {boolean} isDamaged */
export function showUnreadable(name, isDamaged) {
  set(at("damaged-name"), name);
  at("damaged").hidden = false;
  at("damaged-offer").hidden = !(isDamaged && session.isSignedIn);
}

/** Shows links to the files of the best model.
 * @param {string} name */
async function offer(name) {
  /** @type {import("./api.js").BestFiles} */
  const { files } = await get(`${pathOf(name)}/best`);
  if (shown.now?.name !== name) return;
  at("downloads").hidden = !files.length;
  at("best-files").replaceChildren(...files.map(({ path, size_bytes }) => {
    const href = `${pathOf(name)}/best/${path.split("/").map(encodeURIComponent).join("/")}`;
    return el("li", {}, el("a", { href, download: "" }, path), ` ${bytes(size_bytes)}`);
  }));
}

/** Opens the dialog that says what a deletion loses. */
function askToDelete() {
  const experiment = shown.now, summary = experiment?.loaded?.summary;
  if (!experiment) return;
  set(at("delete-title"), `Delete ${experiment.name}?`);
  const trained = summary ? ` (${counted(numTrials(summary), "trial")}, ${counted(summary.epochs, "epoch")})` : "";
  set(at("delete-lost"), `This deletes the experiment's folder with its journal, checkpoints and best model${trained}. `
    + "It cannot be undone. Archive the experiment instead to hide it from the list.");
  set(at("delete-status"), "");
  typed.value = "";
  at("delete-for-ever", HTMLButtonElement).disabled = true;
  dialog.showModal();
}

notesForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const experiment = shown.now;
  act(notesForm, at("notes-status"), "saving", async () => {
    const typed = { tags: tags.value.split(/[\s,]+/).filter(Boolean), notes: notes.value };
    try {
      await post(`${experiment?.path}/notes`, { ...typed, shown_tags: filled.tags, shown_notes: filled.notes });
    } catch (error) {
      if (/** @type {any} */ (error).status !== CONFLICT) throw error;
      filled = await get(experiment?.path ?? "");
      throw new Error(`somebody has saved other notes meanwhile: tags ${filled.tags.join(" ") || "none"}; notes: ${filled.notes || "none"}. `
        + "Yours are still in the form. Save again to replace theirs");
    }
    filled = { name: filled.name, ...typed };
    tags.value = typed.tags.join(" ");
    await experiment?.load({ fresh: false });
  }, "saved");
});
at("archive").addEventListener("click", () => {
  const experiment = shown.now;
  act(at("archive-form", HTMLFormElement), at("archive-status"), "saving", async () => {
    if (!experiment?.loaded) await experiment?.load({ fresh: false }); // after the first page, which is on its way
    await post(`${experiment?.path}/archive`, { archived: !experiment?.loaded?.summary.archived });
    await experiment?.load({ fresh: false });
  });
});
for (const id of ["delete", "delete-damaged"]) at(id).addEventListener("click", askToDelete);
typed.addEventListener("input", () => {
  at("delete-for-ever", HTMLButtonElement).disabled = typed.value !== shown.now?.name;
});
at("delete-cancel").addEventListener("click", () => dialog.close());
deleteForm.addEventListener("submit", (event) => {
  event.preventDefault();
  const experiment = shown.now;
  if (!experiment || typed.value !== experiment.name) return;
  act(deleteForm, at("delete-status"), "deleting", async () => {
    /** @type {import("./api.js").Deleted} */
    const { name, left } = await remove(experiment.path);
    dialog.close();
    set(at("list-status"), left || `${name} is deleted.`);
    location.hash = "#";
  });
});
window.addEventListener("hashchange", () => {
  dialog.close();
  if (location.hash.length > 1) set(at("list-status"), "");
});
