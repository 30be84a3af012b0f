use std::fs::File;

use super::*;

/// A directory of its own for each test; removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-state-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A file with a snapshot of an empty store, written this far ahead of the clock.
    fn snapshot(&self, ahead: Nanos) -> StateFile {
        let path = self.0.join("state");
        let head = SnapshotHead { seed: [3; 16], at: SystemClock::new().now().saturating_add(ahead) };
        write_to(&path, |out| LocalStore::new().write_snapshot(&head, out)).unwrap();
        StateFile { path, every: Nanos::SECOND }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn written_at(recovered: &RestoredState) -> Option<Nanos> {
    match recovered.recovery {
        Recovery::Restored { at, .. } => Some(at),
        _ => None,
    }
}

#[test]
fn each_unusable_file_is_kept_under_a_name_of_its_own() {
    let scratch = Scratch::new("kept");
    let file = StateFile { path: scratch.0.join("state"), every: Nanos::SECOND };
    for damaged in ["first", "second", "third"] {
        fs::write(&file.path, format!("{}{damaged}", String::from_utf8_lossy(snapshot::MARK))).unwrap();
        assert!(matches!(RestoredState::from_file(Some(&file), None).recovery, Recovery::Refused { .. }));
        assert!(!file.path.exists());
    }
    for (name, damaged) in [("state.refused", "first"), ("state.refused.2", "second"), ("state.refused.3", "third")] {
        assert!(fs::read_to_string(scratch.0.join(name)).unwrap().ends_with(damaged), "{name}");
    }
}

#[test]
fn the_seed_comes_with_the_state() {
    let scratch = Scratch::new("seed");
    let file = scratch.snapshot(Nanos::ZERO);
    let recovered = RestoredState::from_file(Some(&file), None);
    assert_eq!(recovered.seed, [3; 16]);
    assert!(written_at(&recovered).is_some());
}

#[test]
fn a_state_whose_keys_have_other_names_is_put_aside() {
    let scratch = Scratch::new("names");
    let file = scratch.snapshot(Nanos::ZERO);
    let same = RestoredState::from_file(Some(&file), Some(&[3; 16]));
    assert!(written_at(&same).is_some());
    let at = SystemClock::new().now();
    let handed_over = RestoredState::from_predecessor(File::open(&file.path).unwrap(), Some(&[4; 16])).unwrap();
    assert!(handed_over.clock.now() >= at);
    let recovered = RestoredState::from_file(Some(&file), Some(&[4; 16]));
    for recovered in [&recovered, &handed_over] {
        let Recovery::Refused { reason } = &recovered.recovery else { panic!("{:?}", recovered.recovery) };
        assert!(reason.contains("was written without this cluster's secret"), "{reason}");
        assert_eq!(recovered.seed, [4; 16]);
    }
    assert!(!file.path.exists() && file.path.with_extension("refused").exists());
}

#[test]
fn a_clock_that_went_back_a_little_goes_on_from_the_snapshot() {
    let scratch = Scratch::new("back");
    let file = scratch.snapshot(Nanos::from_secs(50));
    let recovered = RestoredState::from_file(Some(&file), None);
    let at = written_at(&recovered).unwrap();
    assert!(at > SystemClock::new().now());
    assert!(recovered.clock.now() >= at);
}

#[test]
fn a_clock_that_went_back_far_is_believed_and_the_snapshot_is_not() {
    let scratch = Scratch::new("future");
    let file = scratch.snapshot(Nanos::from_secs(3600));
    let recovered = RestoredState::from_file(Some(&file), None);
    let Recovery::Refused { reason } = &recovered.recovery else { panic!("{:?}", recovered.recovery) };
    assert!(reason.contains("is from the future: it was written"), "{reason}");
    assert_ne!(recovered.seed, [3; 16]);
    assert!(!file.path.exists() && file.path.with_extension("refused").exists());
}

#[test]
fn in_a_handover_the_clock_goes_on_whatever_the_wall_clock_says() {
    let scratch = Scratch::new("handover");
    let file = scratch.snapshot(Nanos::from_secs(3600));
    let recovered = RestoredState::from_predecessor(File::open(&file.path).unwrap(), None).unwrap();
    assert!(recovered.clock.now() >= written_at(&recovered).unwrap());
}

#[test]
fn a_file_of_the_old_process_is_known_however_its_path_is_spelled() {
    let scratch = Scratch::new("spelled");
    let StateFile { path, every } = scratch.snapshot(Nanos::ZERO);
    let folder = scratch.0.file_name().unwrap();
    let other = StateFile { path: scratch.0.join("..").join(folder).join("state"), every };
    let successor =
        |before: &PredecessorFile| RestoredState::fresh(Recovery::Absent, None).with_file(Some(&other), before);
    let written = PredecessorFile { written: Some(path.clone()), refused: None };
    assert!(successor(&written).last.is_some());
    let refused = PredecessorFile { written: None, refused: Some(path) };
    assert_eq!(successor(&refused).refused, Some(Stamp::of(&other.path)));
}

#[test]
fn the_clock_is_the_wall_clock_where_that_is_ahead() {
    let clock = SystemClock::new().not_before(Nanos::SECOND);
    assert!(clock.now() > Nanos::from_secs(1_700_000_000));
}

#[test]
fn a_snapshot_that_cannot_be_written_leaves_the_one_before() {
    let scratch = Scratch::new("whole");
    let file = scratch.snapshot(Nanos::ZERO);
    let before = fs::read(&file.path).unwrap();
    let failed = write_to(&file.path, |out| {
        out.write_all(b"half a snapshot")?;
        Err(io::Error::other("the disk is full"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "the disk is full");
    assert_eq!(fs::read(&file.path).unwrap(), before);
    assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
}
