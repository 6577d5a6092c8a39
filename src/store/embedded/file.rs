//! The journal file on disk: lock, head, appending, replacing it whole. Blocking calls only.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, BufReader, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use super::change::{FileHead, Frame, Record, read_frame};
use crate::store::StoreError;

/// A cut longer than this is no torn write: it is longer than any batch.
pub(super) const TORN_BYTES_MAX: u64 = 2 * super::group::PENDING_BYTES_MAX as u64;

/// Lets tests fill the disk, hold the writer up, and count its syncs.
#[derive(Debug, Clone, Default)]
pub(super) struct Faults {
    #[cfg(test)]
    pub(super) rig: std::sync::Arc<super::tests::Rig>,
}

impl Faults {
    #[cfg(not(test))]
    #[allow(clippy::unused_self, clippy::unnecessary_wraps, reason = "only tests have faults")]
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    #[cfg(test)]
    fn check(&self) -> io::Result<()> {
        self.rig.check()
    }
}

/// An open journal file, positioned at its end.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: File,
    bytes: u64,
    faults: Faults,
}

impl JournalFile {
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends and makes durable. After an error nothing is known about what follows the bytes that were there before.
    pub(super) fn append(&mut self, batch: &[u8]) -> io::Result<()> {
        if let Err(full) = self.faults.check() {
            // A full disk takes what still fits.
            self.file.write_all(&batch[..batch.len() / 2])?;
            return Err(full);
        }
        self.file.write_all(batch)?;
        self.file.sync_data()?;
        self.bytes += batch.len() as u64;
        Ok(())
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    PathBuf::from(name)
}

fn private_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // Leads stand in it (P9).
        options.mode(0o600);
    }
    options
}

/// Locks the journal against other processes. The lock stands in a file of its own, because the journal itself is replaced
/// now and then. It lasts as long as the returned handle, and never longer than the process.
pub(super) fn lock(path: &Path) -> Result<File, StoreError> {
    let lock_path = beside(path, ".lock");
    let failed =
        |error: io::Error| StoreError::NotDone(format!("cannot lock {}: {}", lock_path.display(), error.kind()));
    let file = private_file().create(true).truncate(false).write(true).open(&lock_path).map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::NotDone(format!("{} is in use by another process", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// A new file being written beside the old one.
#[derive(Debug)]
pub(super) struct Replacement {
    out: BufWriter<File>,
    temporary: PathBuf,
    path: PathBuf,
    bytes: u64,
    buffer: Vec<u8>,
    faults: Faults,
}

impl Replacement {
    pub(super) fn begin(path: &Path, partitions: u16, faults: &Faults) -> io::Result<Self> {
        faults.check()?;
        let temporary = beside(path, ".new");
        let file = private_file().create(true).truncate(true).write(true).open(&temporary)?;
        let mut buffer = Vec::new();
        FileHead::new(partitions).encode(&mut buffer)?;
        let (out, path) = (BufWriter::with_capacity(1 << 18, file), path.to_owned());
        let mut new = Self { out, temporary, path, bytes: 0, buffer: Vec::new(), faults: faults.clone() };
        new.write(&buffer)?;
        Ok(new)
    }

    pub(super) fn write_records(&mut self, records: &[Record]) -> io::Result<()> {
        self.faults.check()?;
        let mut buffer = std::mem::take(&mut self.buffer);
        for record in records {
            buffer.clear();
            record.encode(&mut buffer)?;
            self.write(&buffer)?;
        }
        self.buffer = buffer;
        Ok(())
    }

    /// Writes records that are framed already.
    pub(super) fn write(&mut self, frames: &[u8]) -> io::Result<()> {
        self.out.write_all(frames)?;
        self.bytes += frames.len() as u64;
        Ok(())
    }

    /// Makes durable what was written so far, so that little is left to do when the calls wait.
    pub(super) fn sync(&mut self) -> io::Result<()> {
        self.out.flush()?;
        self.out.get_ref().sync_all()
    }

    /// Puts the new file in the place of the old one; everything is to be synced before. A crash leaves one or the other,
    /// whole; after an error it is not known which.
    pub(super) fn swap(self) -> io::Result<JournalFile> {
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        fs::rename(&self.temporary, &self.path)?;
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()?;
        Ok(JournalFile { file, bytes: self.bytes, faults: self.faults })
    }

    /// Removes what was begun; a left-over is overwritten by the next one anyway.
    pub(super) fn abandon(self) {
        let _ = fs::remove_file(&self.temporary);
    }
}

/// Opens an existing file and hands every record in it to `replay`; `None` when there is no file yet. A torn end is cut
/// off: it belongs to a batch that nobody was told about.
pub(super) fn open(
    path: &Path,
    partitions: u16,
    faults: &Faults,
    mut replay: impl FnMut(Record) -> Result<(), StoreError>,
) -> Result<Option<JournalFile>, StoreError> {
    let name = path.display();
    let failed = |error: io::Error| StoreError::NotDone(format!("cannot read {name}: {}", error.kind()));
    let file = match private_file().read(true).write(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let total = file.metadata().map_err(failed)?.len();
    if total == 0 {
        return Ok(None);
    }
    let mut reader = BufReader::with_capacity(1 << 18, file);
    let head = match read_frame(&mut reader).map_err(failed)? {
        Frame::Whole(body) => FileHead::decode(&body),
        Frame::End | Frame::Torn => None,
    };
    let head = head.ok_or_else(|| StoreError::Bug(format!("{name} is not a journal that this version reads")))?;
    if head.partitions != partitions {
        let found = head.partitions;
        return Err(StoreError::Bug(format!("{name} has {found} partitions, the configuration says {partitions}")));
    }
    let mut good = reader.stream_position().map_err(failed)?;
    loop {
        match read_frame(&mut reader).map_err(failed)? {
            Frame::Whole(body) => {
                let unknown =
                    || StoreError::Bug(format!("{name} holds a record at byte {good} that is not known here"));
                replay(Record::decode(&body).ok_or_else(unknown)?)?;
                good = reader.stream_position().map_err(failed)?;
            }
            Frame::End => break,
            Frame::Torn => {
                let cut = total.saturating_sub(good);
                if cut > TORN_BYTES_MAX {
                    return Err(StoreError::Bug(format!(
                        "{name} is damaged at byte {good}, {cut} bytes before its end"
                    )));
                }
                tracing::warn!(file = %name, at_byte = good, bytes = cut, "cut off a torn end of the journal");
                break;
            }
        }
    }
    let mut file = reader.into_inner();
    file.set_len(good).and_then(|()| file.sync_all()).map_err(failed)?;
    file.seek(io::SeekFrom::Start(good)).map_err(failed)?;
    Ok(Some(JournalFile { file, bytes: good, faults: faults.clone() }))
}
