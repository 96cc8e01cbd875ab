"""`run` and `chaos`: a scenario on a testbed, from the arguments to the exit code."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from loadgen import analysis, costs, experiment, store
from loadgen.cli import cost, testbeds
from loadgen.cli.app import app, duration, stdout
from loadgen.clock import MonotonicClock
from loadgen.core.errors import ConfigError, HarnessError
from loadgen.core.history import Ending
from loadgen.core.ports import Testbed
from loadgen.core.results import Results
from loadgen.core.verdict import Exit, exit_code
from loadgen.kube.options import DEFAULTS, ClusterOptions
from loadgen.progress import Show
from loadgen.report import terminal
from loadgen.scenarios import loader

CLUSTER_PANEL = "On a cluster (--testbed kind or cluster)"
TESTBEDS = ("lab", "kind", "cluster")


def cluster_option(*names: str, help: str, **more: Any) -> Any:
    """An option that means something on clusters only; shown apart in --help."""
    return typer.Option(*names, help=help, rich_help_panel=CLUSTER_PANEL, **more)


ScenarioArg = Annotated[str, typer.Argument(help="A built-in scenario (see `list`) or a YAML file.")]
OutOpt = Annotated[Path | None, typer.Option("--out", help="Run directory; must not exist yet.")]
TestbedOpt = Annotated[str, typer.Option("--testbed", help="Where to run: lab, kind or cluster.")]
VariantOpt = Annotated[list[str] | None, typer.Option("--variant", help="Run this variant only; repeatable.")]
SetOpt = Annotated[
    list[str] | None, typer.Option("--set", help="Override, e.g. faults.race.probability=0; repeatable.")
]
SeedOpt = Annotated[int | None, typer.Option("--seed", help="Seed of every schedule and choice; default: drawn.")]
RepeatOpt = Annotated[int, typer.Option("--repeat", min=1, help="Runs of each variant, interleaved.")]
FactorialOpt = Annotated[bool, typer.Option("--factorial", help="Also run each fix alone.")]
TimeoutOpt = Annotated[str | None, typer.Option("--timeout", help="Give up after this long, e.g. 15m.")]
DryOpt = Annotated[
    bool, typer.Option("--dry-run", help="Check everything, say what would run and be touched, run nothing.")
]
JsonOpt = Annotated[bool, typer.Option("--json", help="Print verdict.json on stdout instead of tables.")]

ContextOpt = Annotated[str | None, cluster_option("--context", help="kubeconfig context; with kind: its cluster's.")]
NodeOpt = Annotated[str | None, cluster_option("--node", help="The node under test; default: the first worker.")]
CniOpt = Annotated[
    Literal["cilium", "none", "model"],
    cluster_option("--cni", help="Whose conntrack is tested: Cilium's, nobody's (the cluster's CNI as it is), "
    "or that of the lab's agent model, chained after the cluster's CNI."),
]  # fmt: skip
NamespaceOpt = Annotated[str, cluster_option("--namespace", help="Where everything of ours is put.")]
ImageOpt = Annotated[str | None, cluster_option("--image", help="loadgen's image; default: loadgen:VERSION.")]
PauseOpt = Annotated[str, cluster_option("--pause-image", help="The image of the pods that come and go.")]
QpsOpt = Annotated[float, cluster_option("--qps", min=0.1, help="Pod creates a second that our client allows.")]
BurstOpt = Annotated[int, cluster_option("--burst", min=1, help="Pod creates at once that our client allows.")]
AllowOpt = Annotated[
    str | None, cluster_option("--allow-context", help="Permit changes to this context, which is not a kind cluster.")
]
KeepOpt = Annotated[bool, cluster_option("--keep", help="Leave a kind cluster that this run made.")]
ConfigOpt = Annotated[
    str | None, cluster_option("--kind-config", help="Topology of a kind cluster to make: a name or a file.")
]
NodeImageOpt = Annotated[
    str | None, cluster_option("--node-image", help="Node image of a kind cluster to make; default: kind's own.")
]
BundleOpt = Annotated[
    Path | None, cluster_option("--bundle", help="Charts and images for a machine without registries.")
]
CiliumOpt = Annotated[
    str | None, cluster_option("--cilium-version", help="Cilium to install on a kind cluster to make.")
]


@app.command()
def run(
    scenario: ScenarioArg,
    out: OutOpt = None,
    testbed: TestbedOpt = "lab",
    variant: VariantOpt = None,
    set_: SetOpt = None,
    seed: SeedOpt = None,
    repeat: RepeatOpt = 1,
    factorial: FactorialOpt = False,
    timeout: TimeoutOpt = None,
    dry_run: DryOpt = False,
    json: JsonOpt = False,
    context: ContextOpt = None,
    node: NodeOpt = None,
    cni: CniOpt = "cilium",
    namespace: NamespaceOpt = "loadgen",
    image: ImageOpt = None,
    pause_image: PauseOpt = DEFAULTS.pause_image,
    qps: QpsOpt = DEFAULTS.qps,
    burst: BurstOpt = DEFAULTS.burst,
    allow_context: AllowOpt = None,
    keep: KeepOpt = False,
    kind_config: ConfigOpt = None,
    node_image: NodeImageOpt = None,
    cilium_version: CiliumOpt = None,
    bundle: BundleOpt = None,
) -> None:
    """Run a scenario: its baseline must break its thresholds, its fixes must hold them."""
    if scenario == costs.KIND:
        return cost.ct_cost(out=out, repeat=max(repeat, costs.Wanted().repeats), seed=seed, json=json)
    if testbed not in TESTBEDS:
        raise ConfigError(f"--testbed {testbed}: unknown; allowed: {', '.join(TESTBEDS)}")
    limit_s = duration("--timeout", timeout) if timeout else None
    options = ClusterOptions(
        context=context,
        node=node,
        cni=cni,
        namespace=namespace,
        image=image or DEFAULTS.image,
        pause_image=pause_image,
        qps=qps,
        burst=burst,
        allow_context=allow_context,
        keep=keep,
        kind_config=kind_config,
        node_image=node_image,
        cilium_version=cilium_version,
        bundle=bundle,
    )
    plan = _plan(scenario, variant or (), set_ or (), seed, repeat, factorial=factorial)
    if dry_run:
        return _tell_plan(plan, testbeds.touches(testbed, options, plan.scenario))
    place = out or Path("runs") / f"{plan.scenario.name}-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
    ending = testbeds.within(testbed, options, lambda made: drive(plan, made, place, limit_s, quiet=json))
    if ending is Ending.INTERRUPTED and not analysis.begun(place):
        raise KeyboardInterrupt
    results = analyse(place)
    analysis.write_reports(place, results)
    tell(place, results, json)
    if ending is Ending.INTERRUPTED:
        raise typer.Exit(Exit.INTERRUPTED)
    raise typer.Exit(exit_code(results.verdict.verdict))


def _of_one_scenario(name: str) -> Callable[..., None]:
    """`run` with its scenario given: the same options, and no second list of them to keep."""

    def command(**options: Any) -> None:
        run(name, **options)

    signature = inspect.signature(run, eval_str=True)
    rest = [parameter for parameter in signature.parameters.values() if parameter.name != "scenario"]
    command.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined] # what typer reads
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in rest}
    return command


app.command("chaos", help="Storm, pod churn and lookups at once on one node, before and after both fixes.")(
    _of_one_scenario("chaos")
)


def _plan(
    name: str, variants: list[str] | tuple[()], overrides: list[str] | tuple[()], seed: int | None, repeat: int, *,
    factorial: bool,
) -> experiment.Plan:  # fmt: skip
    scenario = loader.load(name, overrides)
    return experiment.Plan(
        scenario=scenario,
        raw=loader.to_raw(scenario),
        variants=experiment.choose_variants(scenario, variants, factorial=factorial),
        repeat=repeat,
        seed=int.from_bytes(os.urandom(4), "little") if seed is None else seed,
        argv=sys.argv,
    )


def drive(plan: experiment.Plan, testbed: Testbed, out: Path, limit_s: float | None, *, quiet: bool) -> Ending:
    """Run the experiment on an event loop. Ctrl-C and SIGTERM end it in order; a second one does so at once."""
    title = f"{plan.scenario.name}: {', '.join(plan.variants)} · seed {plan.seed} · {out}"

    async def main(show: Show) -> Ending:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, task.cancel)
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            task.cancel()

        if limit_s is not None:
            loop.call_later(limit_s, expire)
        observer = experiment.Observer(show.begin, show.message, show.end)
        ending = await experiment.run(plan, testbed, out, MonotonicClock(), observer)
        if expired and ending is Ending.INTERRUPTED:
            raise HarnessError(f"not done after --timeout {limit_s:g} s; what was measured is in {out}")
        return ending

    with Show(Console(stderr=True), title, quiet=quiet) as show:
        return asyncio.run(main(show))


def _tell_plan(plan: experiment.Plan, touched: tuple[str, ...]) -> None:
    console = stdout()
    scenario = plan.scenario
    seconds = sum(phase.duration.seconds for phase in scenario.phases)
    console.print(f"{scenario.name}: {scenario.hypothesis}", markup=False)
    for name, variant, _ in experiment.run_names(plan):
        console.print(f"  {name}: {scenario.variants[variant].describe}", markup=False)
    for phase in scenario.phases:
        mark = " (measured)" if phase.measured else ""
        console.print(f"  phase {phase.name}{mark}: up to {phase.duration}: {', '.join(phase.loads)}", markup=False)
    for text in scenario.thresholds:
        console.print(f"  threshold {text}", markup=False)
    for text in touched:
        console.print(f"  touches {text}", markup=False)
    runs = len(plan.variants) * plan.repeat
    console.print(f"  {runs} runs of up to {seconds:.0f} s each; nothing was run", markup=False)


# --- what a run and `analyze` end with --------------------------------------------------------------------------


def analyse(out: Path) -> Results:
    return analysis.analyse_directory(out, loader.from_raw)


def tell(out: Path, results: Results, json: bool) -> None:
    """The verdict on stdout: as JSON, or as a table and the report's place."""
    if json:
        sys.stdout.write(store.to_json(results.verdict))
        return
    console = stdout()
    console.print(terminal.findings_table(results))
    console.print(f"report: {out / 'report.html'}", markup=False, highlight=False, soft_wrap=True)
