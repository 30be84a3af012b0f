//! The speed of replay.

use std::fmt::Write as _;

use crate::support::Folder;

const LINES: u64 = 3_000_000;
const KEYS: u64 = 50_000;
/// The number of measurements; the median counts.
const TIMES: usize = 5;

const CONFIG: &str = "listeners: [{ address: \"127.0.0.1:1\" }]
upstreams: { origin: { nodes: [\"127.0.0.1:2\"] } }
limits: { guard: { key: client_address, algorithm: gcra, rate: 1/s, burst: 20 } }
routes: [{ name: all, upstream: origin, limits: [guard] }]
";

/// Measures lines per second of CPU time with a single limit. Run it with `cargo nextest run --release --test replay
/// --run-ignored only --no-capture speed`.
#[test]
#[ignore = "measures, and only a release build is worth measuring"]
fn replay_plays_300_000_lines_a_second() {
    let folder = Folder::new();
    folder.write("tollgate.yaml", CONFIG);
    let (mut combined, mut json) = (String::new(), String::new());
    let mut state = 1_u64;
    for line in 0..LINES {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let key = (state >> 40) % KEYS;
        let (a, b) = (key / 250, key % 250);
        let time =
            jiff::Timestamp::from_microsecond(1_700_000_000_000_000 + i64::try_from(line * 50).unwrap()).unwrap();
        writeln!(
            combined,
            "10.0.{a}.{b} - - [{}] \"GET /v1/orders/{line}?page=2 HTTP/1.1\" 200 5316 \"https://shop.example/\" \
             \"Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\"",
            time.strftime("%d/%b/%Y:%H:%M:%S +0000")
        )
        .unwrap();
        // in the format of the gateway's access log
        let took = (state >> 20) % 16_000;
        writeln!(
            json,
            "{{\"timestamp\":\"{time:.6}\",\"method\":\"GET\",\"host\":\"shop.example\",\"path\":\"/v1/orders/{line}\",\
             \"status\":200,\"duration_seconds\":0.{took:06},\"route\":\"all\",\"client\":\"10.0.{a}.{b}\",\
             \"decision\":\"admitted\",\"limit\":\"guard\",\"wait_seconds\":0.0,\"upstream\":\"127.0.0.1:2\"}}"
        )
        .unwrap();
    }
    for (format, text) in [("combined", combined), ("JSON", json)] {
        folder.write("access.log", &text);
        folder.write("first.log", text.lines().next().unwrap());
        let typical = |log| {
            let mut times = [(); TIMES].map(|()| processor_time(&folder, &["--config", "tollgate.yaml", log]));
            times.sort_unstable_by(f64::total_cmp);
            times[TIMES / 2]
        };
        let (start, time) = (typical("first.log"), typical("access.log"));
        #[expect(clippy::cast_precision_loss, reason = "a report")]
        let rate = LINES as f64 / (time - start);
        let mut out = std::io::stderr();
        let say = format!("{format}: {LINES} lines in {time:.2} s of processor time: {rate:.0} lines a second\n");
        drop(std::io::Write::write_all(&mut out, say.as_bytes()));
        assert!(rate > 3e5, "{rate}");
    }
}

/// The CPU time of a run in seconds, of all threads.
fn processor_time(folder: &Folder, arguments: &[&str]) -> f64 {
    let before = children();
    folder.replayed(arguments);
    children() - before
}

/// The CPU time in seconds of all child processes that have ended.
fn children() -> f64 {
    // after the name, which may contain spaces, the 14th and 15th words are utime and stime of children
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, rest) = stat.rsplit_once(')').unwrap();
    let ticks: u32 = rest.split_whitespace().skip(13).take(2).map(|word| word.parse::<u32>().unwrap()).sum();
    f64::from(ticks) / 100.0
}
