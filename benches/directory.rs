//! What a directory of a million customers costs: time to load, memory, a lookup, and following a file of which one row
//! in a hundred changed, with lookups going on beside it.
//!
//! `cargo bench --bench directory`; a number after `--` is another number of rows.

use std::fmt::Write;
use std::hint::black_box;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tollgate::config;
use tollgate::customers::directory::{FileDirectory, Format};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const CONFIG: &str = r#"
listeners: [{ address: "127.0.0.1:8080" }]
upstreams: { a: { nodes: ["10.0.0.1:80"] } }
customers: { identify: [{ header: x-api-key }], directory: { file: customers.csv } }
plans: [free, pro]
limits:
  calls: { key: customer, algorithm: gcra, rate: 10/s, burst: 20 }
  imports: { key: customer, algorithm: fixed_window, limit: 9, window: day, align: calendar, timezone: customer }
routes: [{ name: r, upstream: a, limits: [calls, imports] }]
"#;

/// A directory in which a tenth has overrides (of a hundred kinds), a tenth a time zone, and a twentieth an end.
/// `changed` tells which rows say something else than at first.
fn text(rows: usize, changed: impl Fn(usize) -> bool) -> String {
    let mut text = "credential,customer,plan,overrides,time_zone,valid_until,suspended\n".to_owned();
    for row in 0..rows {
        let plan = if changed(row) { "pro" } else { "free" };
        let overrides = match row % 10 {
            0 => format!("\"{{calls: {{rate: {}/s, burst: 100}}}}\"", row / 10 % 100 + 1),
            _ => String::new(),
        };
        let zone = if row % 10 == 1 { "Europe/Berlin" } else { "" };
        let end = if row % 20 == 2 { "2099-12-31" } else { "" };
        writeln!(text, "{},customer-{row:07},{plan},{overrides},{zone},{end},", credential(row)).unwrap_or_default();
    }
    text
}

fn credential(row: usize) -> String {
    format!("sk_live_{:024x}", (row as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c))
}

#[expect(clippy::disallowed_methods, reason = "a stopwatch")]
fn now() -> Instant {
    Instant::now()
}

/// Resident memory and its highest mark so far, in MB.
fn memory() -> (u64, u64) {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let of = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0) * 1024 / 1_000_000
    };
    (of("VmRSS:"), of("VmHWM:"))
}

/// The mean and the longest time of a lookup, until `done`.
fn look_up(directory: &FileDirectory, keys: &[String], done: impl Fn(usize) -> bool) -> (Duration, Duration) {
    let (mut longest, mut count) = (Duration::ZERO, 0_usize);
    let began = now();
    while !done(count) {
        let key = &keys[count.wrapping_mul(7919) % keys.len()];
        let start = now();
        black_box(directory.find(key.as_bytes()));
        longest = longest.max(start.elapsed());
        count += 1;
    }
    let mean = began.elapsed().as_nanos() / u128::try_from(count.max(1)).unwrap_or(1);
    (Duration::from_nanos(u64::try_from(mean).unwrap_or(u64::MAX)), longest)
}

#[expect(clippy::print_stdout, reason = "figures of the benchmark")]
#[expect(clippy::expect_used, reason = "the texts are right")]
fn main() {
    let rows = std::env::args().filter_map(|argument| argument.parse().ok()).next().unwrap_or(1_000_000);
    let overrides = config::load(CONFIG, "bench.yaml", &|_| None).expect("a configuration").overrides;
    let file = std::env::temp_dir().join(format!("tollgate-bench-{}.csv", std::process::id()));
    std::fs::write(&file, text(rows, |_| false)).expect("a file");
    let size = std::fs::metadata(&file).map_or(0, |metadata| metadata.len()) / 1_000_000;
    let (before, _) = memory();
    let began = now();
    let read = std::fs::read_to_string(&file).expect("the file");
    let directory = FileDirectory::load(&read, Format::Csv, &[7; 16], Arc::new(overrides)).expect("a directory");
    let loading = began.elapsed();
    drop(read);
    std::fs::remove_file(&file).unwrap_or_default();
    let (after, highest) = memory();
    println!("{rows} rows ({size} MB of CSV) load in {loading:.2?}");
    println!(
        "they take {} MB ({} MB at most while they are read, the text included)",
        after - before,
        highest - before
    );

    let keys: Vec<String> = (0..rows).map(credential).collect();
    let (mean, longest) = look_up(&directory, &keys, |count| count >= 1_000_000);
    println!("a lookup takes {mean:?} (the longest of a million {longest:?})");

    let changed = text(rows, |row| row % 100 == 7);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| look_up(&directory, &keys, |_| done.load(Ordering::Relaxed)));
        let began = now();
        let changes = directory.update(&changed).expect("an update");
        let took = began.elapsed();
        done.store(true, Ordering::Relaxed);
        println!("an update in which {} rows changed takes {took:.2?}", changes.changed);
        let (mean, longest) = beside.join().expect("a thread");
        println!("a lookup beside it takes {mean:?} (the longest {longest:?})");
    });
    println!("after it {} MB", memory().0 - before);
}
