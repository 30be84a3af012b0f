//! `tollgate replay`: replays access logs through the limits of a configuration.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::simulate::values::duration;
use crate::cli::source;
use crate::cli::unwritten;
use crate::config::{TrialSetting, nearest};
use crate::replay::decisions::DecisionWriter;
use crate::replay::fields::{Mapping, WantedFields};
use crate::replay::play::{Player, RulesetRun, SecondPlacement};
use crate::replay::reading::{MergedLogs, Options};
use crate::replay::replayer::Replayer;
use crate::replay::report::CompleteReport;
use crate::replay::rules::ReplayRules;
use crate::replay::source::Progress;
use crate::replay::{html, render};
use crate::ruleset::PlanId;
use crate::ruleset::key::KeyHasher;
use crate::runtime::config_source::CompiledConfig;
use crate::units::Nanos;

/// The arguments of `tollgate replay`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = MANUAL)]
pub struct ReplayArgs {
    /// The configuration with the limits to try
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
    /// Another configuration to compare with, request by request, such as the one in force
    #[arg(long, value_name = "OTHER")]
    pub against: Option<PathBuf>,
    /// A setting of a limit to try instead of the one in FILE; may be repeated. Without --against, the replay compares
    /// with the unchanged FILE
    #[arg(long = "set", value_name = "PATH=VALUE")]
    pub changes: Vec<TrialSetting>,
    /// Access logs in common or combined log format or as JSON lines, compressed with gzip or not; `-` for standard input
    #[arg(value_name = "ACCESS_LOG", required = true)]
    pub logs: Vec<PathBuf>,
    /// The plan of callers for whom neither the customer directory nor the log has one
    #[arg(long, value_name = "NAME")]
    pub plan: Option<String>,
    /// The host of requests whose lines name none
    #[arg(long, value_name = "HOST", default_value = "")]
    pub host: String,
    /// Where JSON lines hold a field that the replay does not find by itself, like customer=request.user.id or
    /// header.x-api-key=req.key; may be repeated
    #[arg(long = "field", value_name = "NAME=PATH")]
    pub fields: Vec<Mapping>,
    /// What the timestamps of lines mean; use `start` for logs of Apache and Envoy
    #[arg(long, value_enum, default_value_t = Times::End)]
    pub times: Times,
    /// How long, in the time of the log, the replay waits for lines of requests that began earlier
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = duration)]
    pub reorder: Nanos,
    /// The duration of requests whose lines name none, for limits on requests in flight
    #[arg(long, value_name = "DURATION", default_value = "100ms", value_parser = duration)]
    pub hold: Nanos,
    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    pub format: Format,
    /// The number of keys to list for each limit: those with the most denied requests
    #[arg(long, value_name = "NUMBER", default_value_t = 10)]
    pub top: usize,
    /// The file to write the decision on every line to, as CSV
    #[arg(long, value_name = "FILE")]
    pub decisions: Option<PathBuf>,
    /// The file to write the report to, as an HTML page with charts
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Exit with status 3 if FILE denies more than this share of the requests. With --against, only denials of requests
    /// that OTHER admits count. If timestamps are whole seconds, a denial counts if FILE denies the request whenever in
    /// its second it arrived, and OTHER may admit it
    #[arg(long, value_name = "PERCENT", value_parser = percent)]
    pub fail_if_denied: Option<Percent>,
}

const MANUAL: &str = "\
What is replayed:
  Each line becomes a request that runs through the gateway's own code, on the time of the log: it
  matches a route, its caller is identified, its keys are charged, and limits admit, delay or deny
  it. No upstream is contacted. If a line has the duration and the outcome of its request, limits on
  requests in flight and costs that depend on the response use them.

What a line contains:
  common, combined   address, user, time, method, path, status and bytes; combined also referer and
                     user agent
  JSON               the fields that tollgate, nginx, Caddy and Traefik log for time, client, method,
                     path, host, status, bytes, request_bytes, duration, wait, customer, plan and
                     upstream; header fields that the rules need, under request.headers, headers or
                     http_NAME. With --field NAME=PATH a field is read from elsewhere: NAME is one of
                     these names, `request` (a request line), duration_ms, duration_us or duration_ns
                     (a duration in that unit), header.NAME or response_header.NAME; PATH leads
                     through nested objects, like req.headers.x-api-key
  If a line names a user, this is the name of a customer. The plan is that in the customer directory,
  or else in the line, or else --plan. If a line names no user, the replay looks up a credential in
  the line as the gateway does.

Order:
  Several logs are merged by time. A line is written when its request ends. If lines have durations,
  or start times (--times start), the replay sorts the requests by when they began. A request that is
  still out of order is replayed at the time of the one before it, and counted. If timestamps are
  whole seconds, the requests of a second are spread evenly over it.

Exit status:
  0  success                  1  failure, with a message on standard error
  2  wrong command line       3  more requests are denied than --fail-if-denied allows

Examples:
  tollgate replay --config new.yaml access.log
  tollgate replay --config new.yaml --against tollgate.yaml --html diff.html access.log*
  tollgate replay --config tollgate.yaml --set limits.per-customer.plans.free.rate=20/m access.log
  tollgate replay --config new.yaml --fail-if-denied 1% --format json - < access.log";

/// The meaning of the timestamps of lines.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Times {
    /// The end of the request, when the line was written
    End,
    /// The beginning of the request
    Start,
}

/// The format of the output.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Tables for people
    Table,
    /// One JSON object with all results, for programs
    Json,
    /// CSV with a row for each limit and plan, and for each route
    Csv,
}

/// A share, 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percent(f64);

/// The exit status if more requests were denied than `--fail-if-denied` allows.
const TOO_MUCH_DENIED: u8 = 3;

const NOTHING_OFFERED: &str = "--fail-if-denied: no request gets as far as the limits, so there is nothing to deny";

/// How often progress is shown, in lines.
const SHOW_EVERY: u64 = 1 << 14;

/// The rules to try, and the rules to compare with and their file.
struct OpenedRules<'a> {
    tried: ReplayRules,
    against: Option<(&'a Path, ReplayRules)>,
}

impl<'a> OpenedRules<'a> {
    fn open(args: &'a ReplayArgs) -> Result<Self, Box<dyn Error>> {
        let tried = open_rules(args, &args.config, &args.changes)?;
        let against = args.against.as_ref().or((!args.changes.is_empty()).then_some(&args.config));
        let against = against.map(|path| Ok::<_, Box<dyn Error>>((path.as_path(), open_rules(args, path, &[])?)));
        Ok(Self { tried, against: against.transpose()? })
    }

    fn player<W: Write>(
        self,
        args: &ReplayArgs,
        within: SecondPlacement,
        decisions: Option<DecisionWriter<W>>,
        wanted: &WantedFields,
    ) -> Player<W> {
        let replayer = |rules| Replayer::new(rules, wanted, args.hold, KeyHasher::new(&rand::random()));
        let side = |name: String, replayer| RulesetRun::new(name, replayer, args.html.is_some());
        let against = self.against.map(|(path, rules)| side(path.display().to_string(), replayer(rules)));
        let tried = match within {
            SecondPlacement::Spread => replayer(self.tried),
            SecondPlacement::Best => replayer(self.tried).only_certain(),
        };
        let changed = if args.changes.is_empty() { "" } else { " with --set" };
        let tried = side(format!("{}{changed}", args.config.display()), tried);
        Player::new(tried, against, within, decisions, wanted)
    }
}

/// Runs the command: a log named `-` comes from `input`, the report goes to `output`.
pub fn execute(
    args: &ReplayArgs,
    input: impl Read + 'static,
    output: impl Write,
    mut errors: impl Write,
) -> Result<ExitCode, Box<dyn Error>> {
    refuse_to_overwrite(args)?;
    let opened = OpenedRules::open(args)?;
    let rulesets = std::iter::once(&opened.tried).chain(opened.against.as_ref().map(|(_, rules)| rules));
    let wanted = WantedFields::of(rulesets.map(|rules| &rules.ruleset));
    let (logs, progress) = crate::replay::source::open(&args.logs, input)?;
    let mut reading = MergedLogs::new(
        logs,
        Options {
            mappings: args.fields.clone(),
            wanted: wanted.clone(),
            times_are_starts: args.times == Times::Start,
            reorder: args.reorder,
        },
    );
    if let Some(path) = &args.html {
        // the page is written at the end; a path that cannot be written is told before a long replay
        let opened = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        opened.map_err(|error| unwritten(path, &error))?;
    }
    let decisions = args.decisions.as_deref().map(|path| {
        let file = File::create(path).map(BufWriter::new);
        let writer = file.and_then(|file| DecisionWriter::new(file, reading.names(), opened.against.is_some()));
        writer.map_err(|error| unwritten(path, &error))
    });
    // this player needs states of its own, and so rules of its own
    let mut best = match args.fail_if_denied {
        Some(_) => Some(OpenedRules::open(args)?.player(args, SecondPlacement::Best, None, &wanted)),
        None => None,
    };
    let mut player = opened.player(args, SecondPlacement::Spread, decisions.transpose()?, &wanted);

    play(&mut reading, &mut player, best.as_mut(), &progress)?;
    let played = CompleteReport::new(&player, best.as_ref(), reading.names(), reading.disorder(), &wanted, args.top);
    if let (Some(decisions), Some(path)) = (player.decisions.take(), &args.decisions) {
        decisions.finish().map_err(|error| unwritten(path, &error))?;
    }
    refuse_nothing(&played)?;
    if let Some(path) = &args.html {
        let page = html::page(&played, &player)?;
        fs::write(path, page).map_err(|error| unwritten(path, &error))?;
    }
    print(&played, args.format, output, &mut errors)?;
    Ok(exit_status(args, &played, errors)?)
}

/// The exit status, with a message if more requests were denied than `--fail-if-denied` allows.
fn exit_status(args: &ReplayArgs, played: &CompleteReport, mut errors: impl Write) -> Result<ExitCode, String> {
    let Some(Percent(max)) = args.fail_if_denied else { return Ok(ExitCode::SUCCESS) };
    let denied = played.denied_share().ok_or(NOTHING_OFFERED)?;
    if denied <= max {
        return Ok(ExitCode::SUCCESS);
    }
    let [denied, max] = [denied, max].map(|share| (share * 1e5).round() / 1e3);
    let is_coarse = played.whole_second_timestamps + played.out_of_order > 0;
    let at_least = if is_coarse { "at least " } else { "" };
    let whose = match &played.comparison {
        Some(_) if is_coarse => " that the other rules may let pass",
        Some(_) => " that the other rules let pass",
        None => "",
    };
    // a write error is ignored, because the exit status says the same
    drop(writeln!(
        errors,
        "{at_least}{denied} % of the requests would be denied{whose}: more than --fail-if-denied {max}%"
    ));
    Ok(ExitCode::from(TOO_MUCH_DENIED))
}

fn play<W: Write>(
    reading: &mut MergedLogs,
    player: &mut Player<W>,
    mut best: Option<&mut Player<W>>,
    progress: &Progress,
) -> Result<(), String> {
    // draws only where standard error is a terminal
    let bar = match progress.total() {
        Some(total) => ProgressBar::new(total),
        None => ProgressBar::new_spinner(),
    };
    let style =
        ProgressStyle::with_template("{bar:30} {percent} % of {total_bytes}, {bytes_per_sec}, {eta} left {msg}");
    if let (Ok(style), Some(_)) = (style, progress.total()) {
        bar.set_style(style);
    }
    let played = reading.run(|line| {
        let failed = |error: io::Error| format!("cannot write the decisions: {error}");
        player.play(&line).map_err(failed)?;
        if let Some(best) = &mut best {
            best.play(&line).map_err(failed)?;
        }
        let lines = player.lines.all;
        if lines.is_multiple_of(SHOW_EVERY) {
            bar.set_position(progress.read());
            bar.set_message(format!("({lines} lines)"));
        }
        Ok(())
    });
    bar.finish_and_clear();
    played
}

fn open_rules(args: &ReplayArgs, path: &Path, changes: &[TrialSetting]) -> Result<ReplayRules, Box<dyn Error>> {
    let CompiledConfig { ruleset, directory, groups, tokens, .. } = source::open_changed(path, changes)?.parts.rules;
    let plan = |name: &String| {
        let position = ruleset.plans.iter().position(|plan| plan == name);
        position.map(PlanId).ok_or_else(|| {
            let near = nearest(name, ruleset.plans.iter().map(String::as_str));
            let hint = near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default();
            format!("--plan: {} has no plan `{name}`{hint}", path.display())
        })
    };
    let default_plan = args.plan.as_ref().map(plan).transpose()?;
    Ok(ReplayRules { ruleset, directory, groups, tokens, default_plan, default_host: args.host.clone() })
}

fn refuse_to_overwrite(args: &ReplayArgs) -> Result<(), String> {
    let logs = args.logs.iter().map(|log| ("a log", log));
    let read = [("--config", &args.config)].into_iter().chain(args.against.iter().map(|other| ("--against", other)));
    let mut used: Vec<_> = logs.chain(read).map(|(other, path)| (other, place(path))).collect();
    for (flag, path) in [("--decisions", &args.decisions), ("--html", &args.html)] {
        let Some(path) = path else { continue };
        let place = place(path);
        if let Some((other, _)) = used.iter().find(|(_, used)| *used == place) {
            return Err(format!("{flag}: {} is also named as {other} and would be overwritten", path.display()));
        }
        used.push((flag, place));
    }
    Ok(())
}

/// The path of a file, which may not exist yet, the same however it is written.
fn place(path: &Path) -> PathBuf {
    fs::canonicalize(path).or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned())
}

fn refuse_nothing(played: &CompleteReport) -> Result<(), String> {
    match played.unreadable_first.first() {
        None if played.lines == 0 => Err(format!("no line in {}", played.logs.join(", "))),
        Some(first) if played.unreadable == played.lines => {
            Err(format!("none of {} lines can be used; the first: {first}", played.lines))
        }
        _ => Ok(()),
    }
}

/// Prints the report. It is no error if the reader closes the output early.
fn print(
    played: &CompleteReport,
    format: Format,
    mut output: impl Write,
    errors: &mut impl Write,
) -> Result<(), String> {
    let failed = |error: &dyn Error| format!("cannot write the report: {error}");
    let printed = match format {
        Format::Table => output.write_all(render::table(played).as_bytes()),
        Format::Json => writeln!(output, "{}", render::json(played).map_err(|error| failed(&error))?),
        Format::Csv => {
            // the CSV rows have no column for this warning
            if let Some(first) = played.unreadable_first.first() {
                let warning =
                    format!("{} of {} lines cannot be used; the first: {first}", played.unreadable, played.lines);
                drop(writeln!(errors, "{warning}"));
            }
            render::csv(played, &mut output)
        }
    };
    match printed.and_then(|()| output.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        printed => printed.map_err(|error| failed(&error)),
    }
}

fn percent(text: &str) -> Result<Percent, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim_end().parse::<f64>().ok());
    let share = number.filter(|number| (0.0..=100.0).contains(number)).map(|number| Percent(number / 100.0));
    share.ok_or_else(|| "expected a share from 0% to 100%, like 0.5%".to_owned())
}
