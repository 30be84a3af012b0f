use std::path::PathBuf;

use super::*;

/// A directory that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-outbox-{:032x}", rand::random::<u128>()));
        Self(path)
    }

    fn open(&self) -> Outbox {
        self.open_with(1 << 20).0
    }

    fn open_with(&self, max_bytes: u64) -> (Outbox, Damage) {
        Outbox::open(&self.0, max_bytes).unwrap()
    }

    /// The one file of a queue of "first" and "second", and its content.
    fn two_records(&self) -> (PathBuf, Vec<u8>) {
        append(&mut self.open(), &["first", "second"]);
        let [file] = self.files().try_into().unwrap();
        let whole = fs::read(&file).unwrap();
        (file, whole)
    }

    /// The files of records, the oldest first.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.0).unwrap().map(|entry| entry.unwrap().path());
        let mut files: Vec<PathBuf> = entries.filter(|path| path.extension().is_some()).collect();
        files.sort();
        files
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn append(outbox: &mut Outbox, records: &[&str]) -> usize {
    let (taken, done) = outbox.append(records.iter().map(|record| record.as_bytes()));
    done.unwrap();
    taken
}

fn texts(outbox: &Outbox, max_records: usize) -> Vec<String> {
    outbox.batch(max_records).unwrap().into_iter().map(|record| String::from_utf8(record).unwrap()).collect()
}

#[test]
fn records_leave_in_their_order_and_stay_until_they_are_acknowledged() {
    let folder = Folder::new();
    let mut outbox = folder.open();
    assert!(outbox.is_empty());
    assert_eq!(append(&mut outbox, &["a", "", "c"]), 3);
    assert_eq!(
        (texts(&outbox, 2), texts(&outbox, 9)),
        (vec!["a".into(), String::new()], vec!["a".into(), "".into(), "c".into()])
    );
    outbox.acknowledge(2).unwrap();
    assert_eq!(append(&mut outbox, &["d"]), 1);
    assert_eq!((outbox.len(), texts(&outbox, 9)), (2, vec!["c".to_owned(), "d".to_owned()]));
    drop(outbox);
    let mut outbox = folder.open();
    assert_eq!((outbox.len(), texts(&outbox, 9)), (2, vec!["c".to_owned(), "d".to_owned()]));
    outbox.acknowledge(5).unwrap();
    assert!(outbox.is_empty() && folder.files().is_empty());
    assert_eq!((append(&mut outbox, &["e"]), texts(&outbox, 9)), (1, vec!["e".to_owned()]));
}

#[test]
fn a_file_that_an_attempt_without_space_left_is_used() {
    let folder = Folder::new();
    let mut outbox = folder.open();
    fs::write(outbox.path_of(1), "").unwrap();
    assert_eq!((append(&mut outbox, &["a"]), texts(&outbox, 9)), (1, vec!["a".to_owned()]));
}

#[test]
fn two_processes_do_not_have_the_same_queue() {
    let folder = Folder::new();
    let outbox = folder.open();
    assert!(matches!(Outbox::open(&folder.0, 1 << 20), Err(OpenError::InUse)));
    drop(outbox);
    folder.open();
}

#[test]
fn a_full_queue_takes_what_there_is_room_for_and_more_once_files_are_over() {
    let folder = Folder::new();
    let (record, max_bytes) = ("x".repeat(100_000), 2_500_000);
    let (mut outbox, _) = folder.open_with(max_bytes);
    let records = vec![record.as_str(); 30];
    let taken = append(&mut outbox, &records);
    assert_eq!((taken, append(&mut outbox, &records)), (24, 0));
    assert!(outbox.bytes() <= max_bytes && folder.files().len() == 3, "{}", outbox.bytes());
    assert_eq!(outbox.bytes(), folder.files().iter().map(|file| fs::metadata(file).unwrap().len()).sum::<u64>());
    outbox.acknowledge(12).unwrap();
    assert_eq!((outbox.len(), folder.files().len()), (12, 2));
    drop(outbox);
    let (mut outbox, damage) = folder.open_with(max_bytes);
    assert_eq!((outbox.len(), damage, texts(&outbox, 99).len()), (12, Damage::default(), 12));
    assert_eq!(append(&mut outbox, &records), 11, "a file of eleven is gone");
    let (_, longest) = (outbox.acknowledge(23).unwrap(), "x".repeat(MAX_RECORD + 1));
    let (taken, done) = outbox.append([b"x".as_slice(), longest.as_bytes()]);
    assert_eq!((taken, done.is_err(), outbox.len()), (1, true, 1), "a record in front of one that fails is queued");
}

/// Whatever a kill leaves of the last records, those before are there, and the queue goes on.
#[test]
fn half_written_records_are_cut_off_at_every_length() {
    let folder = Folder::new();
    let (file, whole) = folder.two_records();
    let ends = [BEGIN as usize, BEGIN as usize + HEAD + 5, BEGIN as usize + 2 * HEAD + 11];
    assert_eq!(whole.len(), ends[2]);
    for length in 0..whole.len() {
        fs::write(&file, &whole[..length]).unwrap();
        let (mut outbox, damage) = folder.open_with(1 << 20);
        let kept = ends[1..].iter().filter(|end| **end <= length).count();
        let expected: Vec<String> = ["first", "second"].iter().take(kept).map(|text| (*text).to_owned()).collect();
        assert_eq!(texts(&outbox, 9), expected, "{length} bytes");
        assert_eq!(damage, Damage { cut: length.saturating_sub(ends[kept]), lost: 0 }, "{length} bytes");
        append(&mut outbox, &["next"]);
        assert_eq!(texts(&outbox, 9).last().unwrap(), "next");
        outbox.acknowledge(9).unwrap();
    }
}

/// Whichever byte a disk changes, of its length too: only that record is lost, and counted.
#[test]
fn a_damaged_record_is_taken_out_and_its_neighbours_stay() {
    let folder = Folder::new();
    let (file, whole) = folder.two_records();
    append(&mut folder.open(), &["third"]);
    let whole_with_third = fs::read(&file).unwrap();
    let second = BEGIN as usize + HEAD + 5..whole.len();
    for position in second.clone() {
        let mut changed = whole_with_third.clone();
        changed[position] ^= 1;
        fs::write(&file, &changed).unwrap();
        let (mut outbox, damage) = folder.open_with(1 << 20);
        assert_eq!((texts(&outbox, 9), damage), (vec!["first".into(), "third".into()], Damage { cut: 0, lost: 1 }));
        append(&mut outbox, &["fourth"]);
        drop(outbox);
        let (mut outbox, damage) = folder.open_with(1 << 20);
        assert_eq!((texts(&outbox, 9).len(), damage), (3, Damage::default()), "the file was mended");
        outbox.acknowledge(9).unwrap();
    }
    let mut changed = whole_with_third;
    changed[second.start + HEAD] ^= 1;
    changed[MARK.len()..][..8].copy_from_slice(&(second.end as u64).to_le_bytes());
    fs::write(&file, &changed).unwrap();
    let (outbox, damage) = folder.open_with(1 << 20);
    assert_eq!((texts(&outbox, 9), damage), (vec!["third".into()], Damage::default()), "it was delivered before");
}

#[test]
fn a_record_that_changed_on_disk_is_not_believed_nor_is_what_a_file_says_beyond_its_records() {
    let folder = Folder::new();
    let (file, whole) = folder.two_records();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    fs::write(&file, &changed).unwrap();
    assert_eq!(texts(&folder.open(), 9), ["first"]);
    // acknowledged up to somewhere within a record: all are delivered, rather twice than never
    let mut elsewhere = whole;
    elsewhere[MARK.len()] += 3;
    fs::write(&file, &elsewhere).unwrap();
    assert_eq!(texts(&folder.open(), 9), ["first", "second"]);
    fs::write(&file, b"something else that somebody keeps here").unwrap();
    assert!(matches!(Outbox::open(&folder.0, 1 << 20), Err(OpenError::Failed(_))));
    assert!(fs::read(&file).unwrap().starts_with(b"something else"), "what is not the queue's is left alone");
}
