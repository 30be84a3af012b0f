//! Every fuzz target with its corpus and a fixed number of mutations of it, the same in every run.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

#[path = "../../fuzz/targets/all.rs"]
mod targets;

/// The maximum length of a mutation in bytes.
const MAX_BYTES: usize = 4096;

fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let mut paths: Vec<_> = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{} is empty", folder.display());
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
}

fn try_out(name: &str) {
    let target = targets::TARGETS.iter().find(|target| target.name == name).unwrap();
    let corpus = corpus(name);
    let run = |what: &str, data: &[u8]| {
        let ended = catch_unwind(AssertUnwindSafe(|| (target.run)(data)));
        assert!(ended.is_ok(), "{name}: {what}: b\"{}\"", data.escape_ascii());
    };
    run("nothing", b"");
    corpus.iter().for_each(|data| run("of the corpus", data));
    let mut random = StdRng::seed_from_u64(9);
    for number in 0..target.tries {
        let data = mutated(&corpus, &mut random);
        run(&format!("mutation {number}"), &data);
    }
}

/// A random entry of the corpus with a few changes.
fn mutated(corpus: &[Vec<u8>], random: &mut StdRng) -> Vec<u8> {
    const SIGNS: &[u8] = b"\0\t\n\r \"#$%&'()*+,-./019:;<=>?@AZ[\\]^_`az{|}~\x7f\x80\xc3\xa9\xff";
    let mut data = corpus[random.random_range(0..corpus.len())].clone();
    for _ in 0..random.random_range(1..6) {
        let at = random.random_range(0..=data.len());
        let length = random.random_range(0..8).min(data.len() - at);
        match random.random_range(0..6) {
            0 => data.insert(at, SIGNS[random.random_range(0..SIGNS.len())]),
            1 => drop(data.drain(at..at + length)),
            2 => data.get_mut(at..at + length).unwrap().fill_with(|| random.random()),
            3 => {
                let copy = data[at..at + length].to_vec();
                let to = random.random_range(0..=data.len());
                data.splice(to..to, copy);
            }
            4 => {
                let other = &corpus[random.random_range(0..corpus.len())];
                let from = random.random_range(0..=other.len());
                data.truncate(at);
                data.extend_from_slice(&other[from..]);
            }
            _ => {
                if let Some(byte) = data.get_mut(at) {
                    *byte = SIGNS[random.random_range(0..SIGNS.len())];
                }
            }
        }
    }
    data.truncate(MAX_BYTES);
    data
}

macro_rules! targets {
    ($($name:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                try_out(stringify!($name));
            }
        )*

        #[test]
        fn every_target_is_tried() {
            let names: Vec<&str> = targets::TARGETS.iter().map(|target| target.name).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

targets! {
    path,
    host,
    forwarded,
    graphql,
    proxy_header,
    config,
    scalar,
    key,
    redis_reply,
    redis_answer,
    cluster_frame,
    cluster_handshake,
    access_log,
    response_field,
    import,
}
