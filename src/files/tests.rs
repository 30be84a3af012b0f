use std::io::Write;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;

use super::*;

/// A directory of its own for each test; removed with it.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("tollgate-files-{}-{name}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn reason(path: &Path, max_bytes: usize) -> String {
    read(path, max_bytes).0.unwrap_err().to_string()
}

#[test]
fn a_file_is_read_up_to_its_bound() {
    let scratch = Scratch::new("bound");
    let path = scratch.write("f", "12345");
    let (bytes, seen) = read(&path, 5);
    assert_eq!((bytes.unwrap(), seen.print), (b"12345".to_vec(), Fingerprint::Bytes(hash(b"12345"))));
    assert_eq!(reason(&path, 4), "is larger than 0 KiB");
    assert_eq!(reason(Path::new("/dev/zero"), 1024), "cannot be read: it is a device, not a regular file");
}

#[test]
fn paths_without_a_regular_file_fail_and_do_not_wait() {
    let scratch = Scratch::new("kinds");
    assert_eq!(reason(&scratch.0, 10), "cannot be read: it is a directory, not a regular file");
    let pipe = scratch.0.join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(reason(&pipe, 10), "cannot be read: it is a pipe, not a regular file");
    let socket = scratch.0.join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    assert!(reason(&socket, 10).starts_with("cannot be read: "));
    assert!(reason(&scratch.0.join("nothing"), 10).contains("No such file"));
}

#[test]
fn a_long_file_is_hashed_as_a_whole() {
    let scratch = Scratch::new("long");
    let text = "0123456789abcde".repeat(CHUNK / 7);
    let path = scratch.write("f", &text);
    let (bytes, seen) = read(&path, text.len());
    assert_eq!((bytes.unwrap(), &seen.print), (text.clone().into_bytes(), &Fingerprint::Bytes(hash(text.as_bytes()))));
    assert_eq!(seen.reread(), seen);
    assert!(read(&path, text.len() - 1).0.is_err());
}

#[test]
fn a_change_is_seen_and_a_touch_is_none() {
    let scratch = Scratch::new("change");
    let path = scratch.write("f", "one");
    let seen = read(&path, 100).1;
    assert_eq!((seen.restamped(), seen.reread()), (seen.clone(), seen.clone()));
    let touched = File::options().write(true).open(&path).unwrap();
    touched.set_modified(std::time::UNIX_EPOCH).unwrap();
    assert_ne!(seen.restamped(), seen);
    assert_eq!(seen.reread().print, seen.print);
    fs::write(scratch.0.join("f"), "two").unwrap();
    assert_ne!(seen.restamped(), seen);
    assert_ne!(seen.reread().print, seen.print);
    fs::remove_file(&path).unwrap();
    assert_eq!(seen.restamped().stamp, Stamp::Missing);
    assert!(matches!(seen.reread().print, Fingerprint::Unreadable(_)));
}

#[test]
fn only_names_that_match_change_the_version_of_a_pattern() {
    let scratch = Scratch::new("pattern");
    let (one, mut seen) = (scratch.write("one.inc.yaml", ""), Vec::new());
    scratch.write(".hidden.inc.yaml", "");
    assert_eq!(list(&scratch.0.join("*.inc.yaml"), &mut seen).unwrap(), [one]);
    scratch.write("t.state.new", "");
    assert_eq!([seen[0].restamped(), seen[0].reread()], [(); 2].map(|()| seen[0].clone()));
    scratch.write("two.inc.yaml", "");
    assert!(seen[0].restamped() != seen[0] && seen[0].reread() != seen[0]);
}

#[test]
fn a_replaced_file_stays_where_its_links_point() {
    let scratch = Scratch::new("links");
    let folder = scratch.0.join("folder");
    fs::create_dir_all(&folder).unwrap();
    symlink("second", scratch.0.join("first")).unwrap();
    symlink("folder/file", scratch.0.join("second")).unwrap();
    for text in ["one", "two"] {
        replace(&scratch.0.join("first"), |file| file.write_all(text.as_bytes())).unwrap();
        assert_eq!(fs::read_to_string(folder.join("file")).unwrap(), text);
    }
    assert!(["first", "second"].iter().all(|link| scratch.0.join(link).is_symlink()));
}
