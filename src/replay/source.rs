//! Opens logs: files, files compressed with gzip, and standard input.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::GzDecoder;

use crate::simulation::lines::Lines;

/// One log.
pub struct Log {
    name: String,
    lines: Lines<Box<dyn BufRead>>,
}

/// The number of bytes to read, and of bytes read so far.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    read: Arc<AtomicU64>,
    total: Option<u64>,
}

impl Progress {
    /// The bytes of the files that were read so far.
    pub fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    /// The bytes of all logs; `None` for standard input and other streams.
    pub const fn total(&self) -> Option<u64> {
        self.total
    }
}

struct CountedReader<R> {
    from: R,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountedReader<R> {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(room)?;
        self.read.fetch_add(u64::try_from(read).unwrap_or(u64::MAX), Ordering::Relaxed);
        Ok(read)
    }
}

/// Unpacks the members of a gzip file, one after the other. As `gzip` does, it skips zeros behind them, the padding of tapes
/// and blocks.
struct GzipReader {
    member: GzDecoder<Box<dyn BufRead>>,
}

impl GzipReader {
    /// Goes to the next member; `false` at the end of the file.
    fn advance(&mut self) -> io::Result<bool> {
        let mut from = std::mem::replace(self.member.get_mut(), Box::new(io::empty()));
        while let zeros @ 1.. = from.fill_buf()?.iter().take_while(|byte| **byte == 0).count() {
            from.consume(zeros);
        }
        match from.fill_buf()?.first() {
            None => return Ok(false),
            Some(first) if *first == GZIP[0] => {}
            Some(_) => {
                return Err(io::Error::new(ErrorKind::InvalidData, "bytes that are not gzip's follow its gzip data"));
            }
        }
        self.member = GzDecoder::new(from);
        Ok(true)
    }
}

impl Read for GzipReader {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        loop {
            let read = self.member.read(room)?;
            if read > 0 || room.is_empty() || !self.advance()? {
                return Ok(read);
            }
        }
    }
}

/// The magic bytes of gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The magic bytes of other compression formats.
const OTHERS: [(&[u8], &str); 4] =
    [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4")];

const TWICE: &str = "standard input (`-`) is named twice, and can be read once; the file of this name is `./-`";

/// How many bytes are read at once: few enough to stay in the processor's cache.
const BUFFER: usize = 64 << 10;

/// Opens logs in the order in which they are named; `-` is `input`.
pub fn open(paths: &[PathBuf], input: impl Read + 'static) -> Result<(Vec<Log>, Progress), String> {
    let mut progress = Progress { total: Some(0), ..Progress::default() };
    let mut input = Some(input);
    let mut logs = Vec::with_capacity(paths.len());
    for path in paths {
        let read = Arc::clone(&progress.read);
        let (name, from): (String, Box<dyn Read>) = match input.take_if(|_| path.as_os_str() == "-") {
            Some(input) => {
                progress.total = None;
                ("standard input".to_owned(), Box::new(CountedReader { from: input, read }))
            }
            None if path.as_os_str() == "-" => return Err(TWICE.to_owned()),
            None => {
                let (file, length) = open_file(path)?;
                progress.total = progress.total.zip(length).map(|(total, length)| total.saturating_add(length));
                (path.display().to_string(), Box::new(CountedReader { from: file, read }))
            }
        };
        logs.push(Log::open(name, from)?);
    }
    Ok((logs, progress))
}

/// Opens a file. Returns its length too if it is a regular file.
fn open_file(path: &Path) -> Result<(File, Option<u64>), String> {
    let failed = |error| format!("cannot open the log {}: {error}", path.display());
    let about = fs::metadata(path).map_err(failed)?;
    if about.is_dir() {
        return Err(format!("{} is a directory: name the logs in it", path.display()));
    }
    Ok((File::open(path).map_err(failed)?, about.is_file().then_some(about.len())))
}

/// The message about a log of which `line` is the last line that was read.
fn unread(name: &str, line: u64, error: &io::Error) -> String {
    format!("cannot read {name} after line {line}: {error}")
}

impl Log {
    fn open(name: String, from: Box<dyn Read>) -> Result<Self, String> {
        let mut from = BufReader::with_capacity(BUFFER, from);
        let start = from.fill_buf().map_err(|error| unread(&name, 0, &error))?;
        if let Some((_, program)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(format!(
                "{name} is packed with {program}: unpack it, as in `{program} -dc {name} | tollgate replay ... -`"
            ));
        }
        let is_gzip = start.starts_with(&GZIP);
        let from: Box<dyn BufRead> = match is_gzip {
            true => Box::new(BufReader::with_capacity(BUFFER, GzipReader { member: GzDecoder::new(Box::new(from)) })),
            false => Box::new(from),
        };
        Ok(Self { name, lines: Lines::new(from) })
    }

    /// The log's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Goes to the next line; `false` at the end.
    pub fn advance(&mut self) -> Result<bool, String> {
        self.lines.advance().map_err(|error| {
            let (name, line) = (&self.name, self.lines.number());
            match error.kind() {
                ErrorKind::UnexpectedEof => {
                    format!("{name} is cut short: its gzip data ends in the middle, after line {line}")
                }
                _ => unread(name, line, &error),
            }
        })
    }

    /// The log's lines.
    pub fn lines(&self) -> &Lines<Box<dyn BufRead>> {
        &self.lines
    }
}
