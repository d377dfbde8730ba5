// The types of the service's answers, as /api/openapi.json describes them, and the part of Plotly that the page calls.
// A test compares the fields with those of the schema.

export type Num = number | "nan" | "inf" | "-inf";
export type Config = { [name: string]: unknown };

export interface BestRow { trial: string; epoch: number; value: Num; config: Config }

export interface Summary {
  name: string; error: string; space: string; state: string; killed: boolean; searcher: string; scheduler: string;
  metric: string; mode: string; prune_by: string; prune_mode: string; num_samples: number; max_epochs: number;
  length: number; grace_period: number;
  reduction_factor: number; brackets: number; seed: number; counts: { [status: string]: number }; ended: number; asked: number; rate: number | null; left_s: number | null; best: BestRow | null;
  started: number | null; updated: number | null; epochs: number; repeated_epochs: number; took_s: number; lines: number; notice: string;
  resume: string; retrain: string; message: string; actions: string[]; outcome: string; audit: string;
  tags: string[]; notes: string; archived: boolean; notes_error: string;
  waits_for: string; waits_since: number | null; not_resumed: string; same_epochs: string;
}

// What a table shows of one field of its rows. The types of rows below have only the fields that a script names.
export interface Column { name: string; head: string; about: string; look: string; rare: boolean; spare: boolean }

export interface TrialRow {
  trial: string; status: string; epochs: number; best: Num | null; reason: string; config: Config; node: string;
  errors: string[]; metrics: { [name: string]: (Num | null)[] };
}

export interface DecisionRow {
  trial: string; epoch: number; rung: number | null; bracket: number | null; value: Num | null; cutoff: Num | null;
  margin: number | null; action: string; band: number | null; outcome: string;
}

export interface Figure { data: { [name: string]: any }[]; layout: { [name: string]: any } }
export interface FigureAnswer { figure: Figure }

export interface CloseCall { trial: string; epoch: number; margin: number; share: number }
export interface Step { text: string; command: string }

export interface Point { term: string; text: string; tone: string }

export interface Verdict {
  outcome: string; ended: string; points: Point[]; epochs_saved: number; seconds_saved: number;
  close_calls: CloseCall[]; steps: Step[];
}

export interface Changes {
  summary: Summary; since: number; num_trials: number; num_decisions: number; parameters: string[]; rungs: object[];
  value_choices: string[]; value_default: string; replayed: { [scheduler: string]: string[] };
  figures: { [name: string]: Figure }; trials: TrialRow[]; decisions: DecisionRow[]; left_out: number;
  verdict: Verdict; metrics: string[]; best_metrics: { [name: string]: Num }; front: object[]; confirmed: ConfirmedSetting[];
  columns: { [table: string]: Column[] };
}

export interface ConfirmedSetting { trials: string[]; mean: number | null }
export interface Costs { rows: object[]; left_out: number }

export interface Experiments { results: string; total: number; experiments: Summary[]; left_out: number }

export interface Log { name: string; size_bytes: number; tail: string }

export interface OneTrial {
  row: TrialRow; decisions: DecisionRow[]; metrics: Config[]; figure: Figure; cost: string; checkpoint: string;
  retrain: string; logs: Log[]; left_out: number;
}

export interface Range { least: number; most: number }

export interface Fate { recorded: number; outcome: "stopped" | "ended" | "unknown"; epochs: number }

export interface WhatIf {
  scheduler: string; grace_period: number; reduction_factor: number; brackets: number; max_epochs: number;
  same: boolean; exact: boolean; best: string; best_lost: boolean | null; epochs_recorded: number; epochs: Range;
  stopped_recorded: number; reproduced: number | null; stopped: Range; fates: Fate[]; notes: string[];
}

export interface WhatIfAnswer { outcome: WhatIf; figure: Figure }

export interface AuditResult {
  winner: string; winner_value: number; metric: string; pruned: number; asked: number; seed: number; done: number;
  beat: number; low: number; high: number; matching: number; stale: boolean; trials: object[];
  estimate: string;
}

export interface AuditAnswer { result: AuditResult | null; command: string }
export interface ComparedRow {
  name: string; color: string; dash: string; error: string; state: string; group: number; space: string;
  searcher: string; scheduler: string; metric: string; mode: string; best: Num | null; trial: string;
  best_epochs: number | null; best_s: number | null; best_trials: number | null; trials: number; completed: number;
  pruned: number; failed: number; epochs: number; took_s: number; worker_s: number;
}

export interface MetricGroup { metric: string; mode: string; names: string[] }
export interface DifferenceRow { name: string; values: string[]; differs: boolean }

export interface Comparison {
  groups: MetricGroup[]; group: number; value_choices: string[]; values: string; columns: string[];
  experiments: ComparedRow[]; options: DifferenceRow[]; parameters: DifferenceRow[]; left_out: number;
  figures: { [name: string]: Figure };
}

export interface SignIn { signed_in: boolean; problem: string }
export interface SpaceChoice { name: string; about: string; defaults: Config }
export interface SpaceChoices { spaces: SpaceChoice[] }

export interface BestFile { path: string; size_bytes: number }
export interface BestFiles { files: BestFile[] }
export interface Deleted { name: string; left: string }

// A property of the schema `Start`.
export interface Option { type?: string; description?: string; enum?: string[]; anyOf?: Option[] }

declare global {
  const Plotly: {
    react(node: HTMLElement, data: object[], layout: object, config: object): Promise<void>;
    downloadImage(figure: object, options: object): Promise<string>;
    Plots: { resize(node: Element): Promise<void> };
    Icons: { camera: object };
  };
}
