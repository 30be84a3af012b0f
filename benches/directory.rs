//! The cost of a directory of a million customers: time to load, memory, a lookup, and a reload of a file in which one row
//! in a hundred has changed, with lookups at the same time.
//!
//! `cargo bench --bench directory`; a number after `--` sets another number of rows. On a busy machine, compare the seconds
//! of CPU time.

use std::fs::File;
use std::hint::black_box;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use tollgate::config;
use tollgate::customers::directory::{CustomerTable, Format, GroupTable};
use tollgate::files;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONFIG: &str = r#"
listeners: [{ address: "127.0.0.1:8080" }]
upstreams: { a: { nodes: ["10.0.0.1:80"] } }
customers:
  identify: [{ header: x-api-key }]
  directory: { file: customers.csv }
  groups: { levels: [organisation, team] }
plans: [free, pro]
limits:
  calls: { key: customer, algorithm: gcra, rate: 10/s, burst: 20 }
  imports: { key: customer, algorithm: fixed_window, limit: 9, window: day, align: calendar, timezone: customer }
routes: [{ name: r, upstream: a, limits: [calls, imports] }]
"#;

/// The number of credentials that are made at a time: few enough to stay in the CPU cache, like that of a request.
const KEYS: usize = 512;

/// Writes a directory in which a tenth of the rows has overrides (of a hundred kinds), a tenth a time zone, and a twentieth
/// an end date. A hundred rows are a team, ten teams an organisation. `changed` selects the rows that differ from the first
/// version. The file is written line by line, so that memory does not grow.
fn write(file: &Path, rows: usize, changed: impl Fn(usize) -> bool) -> std::io::Result<()> {
    let mut text = BufWriter::new(File::create(file)?);
    writeln!(text, "credential,customer,plan,overrides,time_zone,valid_until,suspended,organisation,team")?;
    for row in 0..rows {
        let plan = if changed(row) { "pro" } else { "free" };
        let overrides = match row % 10 {
            0 => format!("\"{{calls: {{rate: {}/s, burst: 100}}}}\"", row / 10 % 100 + 1),
            _ => String::new(),
        };
        let zone = if row % 10 == 1 { "Europe/Berlin" } else { "" };
        let end = if row % 20 == 2 { "2099-12-31" } else { "" };
        let groups = format!("organisation-{:04},team-{:05}", row / 1000, row / 100);
        writeln!(text, "{},customer-{row:07},{plan},{overrides},{zone},{end},,{groups}", credential(row))?;
    }
    text.flush()
}

fn credential(row: usize) -> String {
    format!("sk_live_{:024x}", (row as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c))
}

/// Credentials from all parts of the file, different ones in every `round`.
fn keys(round: usize, rows: usize) -> Vec<String> {
    (0..KEYS).map(|key| credential((round * KEYS + key).wrapping_mul(7919) % rows)).collect()
}

#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn now() -> Instant {
    Instant::now()
}

/// The CPU time of this thread in nanoseconds.
fn spent() -> u64 {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    status.split_whitespace().next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

/// The result of `work`, its wall time and its CPU time in seconds.
fn timed<T>(work: impl FnOnce() -> T) -> (T, f64, f64) {
    let (began, before) = (now(), spent());
    let made = work();
    (made, began.elapsed().as_secs_f64(), (spent() - before) as f64 / 1e9)
}

/// The resident memory and its peak so far, in MB.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024 / 1_000_000
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// The median time of a lookup in nanoseconds over many rounds, so that a busy machine does not matter.
fn usual(directory: &CustomerTable, rows: usize) -> f64 {
    let of_round = |round| {
        let keys = keys(round, rows);
        let began = now();
        keys.iter().for_each(|key| drop(black_box(directory.find(key.as_bytes()))));
        began.elapsed().as_nanos() as f64 / KEYS as f64
    };
    let mut rounds: Vec<f64> = (0..1_000_000 / KEYS).map(of_round).collect();
    rounds.sort_by(f64::total_cmp);
    rounds.get(rounds.len() / 2).copied().unwrap_or(0.0)
}

/// The longest lookup until `done`, and the 99.99th percentile, in microseconds.
fn longest(directory: &CustomerTable, rows: usize, done: impl Fn(usize) -> bool) -> (f64, f64) {
    let mut times = Vec::with_capacity(8_000_000);
    for round in 0.. {
        for key in keys(round, rows) {
            let start = now();
            black_box(directory.find(key.as_bytes()));
            times.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        }
        if done(times.len()) {
            break;
        }
    }
    times.sort_unstable();
    let of = |above: usize| times.iter().rev().nth(above).map_or(0.0, |nanos| f64::from(*nanos) / 1e3);
    (of(0), of(times.len() / 10_000))
}

#[expect(clippy::print_stdout, reason = "figures of the benchmark")]
#[expect(clippy::expect_used, reason = "the texts are right")]
fn main() {
    let rows = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1_000_000);
    let overrides = config::load(CONFIG, "bench.yaml", &|_| None).expect("a configuration").customers.overrides;
    let path = std::env::temp_dir().join(format!("tollgate-bench-{}.csv", std::process::id()));
    let read = || String::from_utf8(files::read(&path, usize::MAX >> 1).0.expect("the file")).expect("text");
    let groups = GroupTable::unlisted(overrides.levels());
    write(&path, rows, |_| false).expect("a file");
    let size = std::fs::metadata(&path).map_or(0, |metadata| metadata.len()) / 1_000_000;

    let (before, _) = memory();
    let load =
        || CustomerTable::load(&read(), Format::Csv, &[7; 16], Arc::new(overrides), &groups).expect("a directory");
    let (directory, seconds, processor) = timed(load);
    let (after, highest) = memory();
    println!("{rows} rows ({size} MB of CSV) load in {seconds:.2} s ({processor:.2} s of processor time)");
    let beyond = |memory: u64| memory.saturating_sub(before);
    println!("they take {} MB at most while they are read, the text included", beyond(highest));
    let lookup = usual(&directory, rows);
    // the allocator returns free memory with a delay, when it is called
    println!("they take {} MB resident ({} MB at first)", beyond(memory().0), beyond(after));
    println!("a lookup takes {lookup:.0} ns");

    let (_, seconds, processor) = timed(|| directory.update(&read(), &groups).expect("an update"));
    println!("a reload in which nothing changed takes {seconds:.2} s ({processor:.2} s of processor time)");

    write(&path, rows, |row| row % 100 == 7).expect("a file");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| longest(&directory, rows, |_| done.load(Ordering::Relaxed)));
        let (changes, seconds, processor) = timed(|| directory.update(&read(), &groups).expect("an update"));
        done.store(true, Ordering::Relaxed);
        println!(
            "a reload in which {} rows changed takes {seconds:.2} s ({processor:.2} s of processor time)",
            changes.changed
        );
        let (most, high) = beside.join().expect("a thread");
        let (most_alone, high_alone) = longest(&directory, rows, |count| count >= 1_000_000);
        println!(
            "the longest lookup beside it takes {most:.0} us, {:.1} times as long as without ({most_alone:.0} us)",
            most / most_alone
        );
        println!(
            "one in ten thousand takes {high:.1} us or more, {:.1} times as long as without ({high_alone:.1} us)",
            high / high_alone
        );
    });
    let lookup = usual(&directory, rows);
    println!("after both they take {} MB resident, and a lookup {lookup:.0} ns", beyond(memory().0));
    std::fs::remove_file(&path).unwrap_or_default();
}
