//! Opens logs: files, files compressed with gzip, and standard input.

use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flate2::bufread::MultiGzDecoder;

use crate::simulation::lines::Lines;

/// One log.
pub struct Log {
    name: String,
    lines: Lines<Box<dyn BufRead>>,
}

/// Why a log cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// The file cannot be opened.
    #[error("cannot open the log {}: {source}", path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Standard input is named more than once.
    #[error("standard input (`-`) is named twice, and can be read once; the file of this name is `./-`")]
    Twice,
    /// The path is a directory.
    #[error("{} is a directory: name the logs in it", .0.display())]
    Directory(PathBuf),
    /// The log is compressed in a format that is not supported.
    #[error("{name} is packed with {program}: unpack it, as in `{program} -dc {name} | tollgate replay ... -`")]
    Packed {
        /// The log.
        name: String,
        /// The program.
        program: &'static str,
    },
    /// The gzip data ends too early.
    #[error("{name} is cut short: its gzip data ends in the middle, after line {line}")]
    CutShort {
        /// The log.
        name: String,
        /// The last line that is whole.
        line: u64,
    },
    /// Reading the log failed.
    #[error("cannot read {name} after line {line}: {source}")]
    Read {
        /// The log.
        name: String,
        /// The last line that was read.
        line: u64,
        /// The cause.
        source: io::Error,
    },
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

/// The magic bytes of other compression formats.
const OTHERS: [(&[u8], &str); 4] =
    [(b"\x28\xb5\x2f\xfd", "zstd"), (b"\xfd7zXZ\x00", "xz"), (b"BZh", "bzip2"), (b"\x04\x22\x4d\x18", "lz4")];

/// How many bytes are read at once: few enough to stay in the processor's cache.
const BUFFER: usize = 64 << 10;

/// Opens logs in the order in which they are named; `-` is `input`.
pub fn open(paths: &[PathBuf], input: impl Read + 'static) -> Result<(Vec<Log>, Progress), SourceError> {
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
            None if path.as_os_str() == "-" => return Err(SourceError::Twice),
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
fn open_file(path: &Path) -> Result<(File, Option<u64>), SourceError> {
    let failed = |source| SourceError::Open { path: path.to_owned(), source };
    let about = fs::metadata(path).map_err(failed)?;
    if about.is_dir() {
        return Err(SourceError::Directory(path.to_owned()));
    }
    Ok((File::open(path).map_err(failed)?, about.is_file().then_some(about.len())))
}

impl Log {
    fn open(name: String, from: Box<dyn Read>) -> Result<Self, SourceError> {
        let mut from = BufReader::with_capacity(BUFFER, from);
        let failed = |source, name: &str| SourceError::Read { name: name.to_owned(), line: 0, source };
        let start = from.fill_buf().map_err(|error| failed(error, &name))?;
        if let Some((_, program)) = OTHERS.iter().find(|(magic, _)| start.starts_with(magic)) {
            return Err(SourceError::Packed { name, program });
        }
        let is_gzip = start.starts_with(&[0x1f, 0x8b]);
        let from: Box<dyn BufRead> = match is_gzip {
            true => Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(from))),
            false => Box::new(from),
        };
        Ok(Self { name, lines: Lines::new(from) })
    }

    /// The log's name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Goes to the next line; `false` at the end.
    pub fn advance(&mut self) -> Result<bool, SourceError> {
        self.lines.advance().map_err(|source| {
            let (name, line) = (self.name.clone(), self.lines.number());
            match source.kind() {
                ErrorKind::UnexpectedEof => SourceError::CutShort { name, line },
                _ => SourceError::Read { name, line, source },
            }
        })
    }

    /// The log's lines.
    pub fn lines(&self) -> &Lines<Box<dyn BufRead>> {
        &self.lines
    }

    /// Makes the next call of `advance` return the same line.
    pub fn repeat_line(&mut self) {
        self.lines.repeat_line();
    }
}
