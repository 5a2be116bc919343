//! The numbers of embedded elections: they never come back, also over kill -9.
//!
//! Numbers are reserved in blocks: a block is on the disk before its first number is given out, and what is left of it
//! when the process ends is never used. It never writes for a single number.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::clock::wall_ms;

/// How many numbers a line of the file reserves.
const BLOCK: u64 = 1 << 20;

/// A state file larger than this is none: a line for every million of numbers is not so much in centuries.
const MOST_BYTES: u64 = 64 << 20;

/// Why a state file cannot be used.
#[derive(Debug, Error)]
pub enum StateError {
    /// Another process uses it.
    #[error(
        "{0:?} is in use by another process; each gateway needs a file of its own ([coordination] state)"
    )]
    InUse(PathBuf),
    /// It cannot be opened, read or written.
    #[error("{path:?} ([coordination] state): {why}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// It holds something else.
    #[error(
        "{0:?} ([coordination] state) is no state file: it has a line that is no number; move it away, and numbers begin above the clock"
    )]
    Strange(PathBuf),
}

/// A locked state file. The lock ends with the process, however it ends.
#[derive(Debug)]
pub(super) struct Counter {
    file: File,
    path: PathBuf,
    reserved: u64,
    /// The last write may have ended within a line.
    torn: bool,
}

impl Counter {
    /// Opens and locks the file at `path`, and makes it where there is none. Numbers go on after the largest that it
    /// reserved; without any they begin above the wall clock in microseconds, where no earlier file has been.
    ///
    /// # Errors
    /// The file is in use, cannot be used, or is something else.
    pub(super) fn open(path: &Path) -> Result<Self, StateError> {
        let failed = |why| StateError::File { path: path.to_owned(), why };
        let mut options = OpenOptions::new();
        options.read(true).append(true).create(true);
        let mut file = options.open(path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StateError::InUse(path.to_owned())),
            Err(TryLockError::Error(why)) => return Err(failed(why)),
        }
        let mut text = String::new();
        let strange = || StateError::Strange(path.to_owned());
        match (&mut file).take(MOST_BYTES).read_to_string(&mut text) {
            Err(why) if why.kind() == io::ErrorKind::InvalidData => return Err(strange()),
            read => read.map_err(failed)?,
        };
        // A line without an end was being written when the process ended: none of its numbers were given out.
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        let (lines, rest) = text.split_at(whole);
        let number = |line: &str| line.parse::<u64>().map_err(|_| strange());
        let reserved = lines
            .lines()
            .filter(|line| !line.is_empty())
            .map(number)
            .try_fold(None, |most, next| next.map(|next| most.max(Some(next))));
        if !rest.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(strange());
        }
        file.set_len(u64::try_from(whole).unwrap_or(u64::MAX)).map_err(failed)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed)?;
        let reserved = reserved?.unwrap_or_else(|| wall_ms().saturating_mul(1000));
        Ok(Self { file, path: path.to_owned(), reserved, torn: false })
    }

    /// Reserves the next block, and returns once it is on the disk: the last number before it, and its last.
    ///
    /// # Errors
    /// It could not be written. Nothing is reserved; it may be tried again.
    pub(super) fn reserve(&mut self) -> Result<(u64, u64), StateError> {
        let (after, last) = (self.reserved, self.reserved.saturating_add(BLOCK));
        let begin = if self.torn { "\n" } else { "" };
        self.torn = true;
        let written = self.file.write_all(format!("{begin}{last}\n").as_bytes());
        written
            .and_then(|()| self.file.sync_data())
            .map_err(|why| StateError::File { path: self.path.clone(), why })?;
        self.torn = false;
        self.reserved = last;
        Ok((after, last))
    }
}
