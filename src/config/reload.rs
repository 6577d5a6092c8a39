//! The routing file over time: picked up whole or not at all, and only when its version rises.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use super::env::Environment;
use super::problem::{Problem, Problems, Severity};
use super::routing::{self, Loaded};
use super::tree::Source;
use super::{Config, ForwardConfig};
use crate::domain::routing::Routing;

/// What tells one state of a file from another without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    pub modified_ms: u64,
    modified_ns: u32,
    bytes: u64,
}

pub(super) fn stamp(path: &Path) -> Option<Stamp> {
    let metadata = std::fs::metadata(path).ok()?;
    let since_epoch = metadata.modified().ok()?.duration_since(UNIX_EPOCH).ok()?;
    Some(Stamp {
        modified_ms: u64::try_from(since_epoch.as_millis()).ok()?,
        modified_ns: since_epoch.subsec_nanos(),
        bytes: metadata.len(),
    })
}

/// Says when a file should be read again. Ask it about once a second.
#[derive(Debug)]
pub struct FileWatch {
    path: PathBuf,
    handled: Option<Stamp>,
    seen: Option<Stamp>,
}

impl FileWatch {
    /// Watches from the state that the file has now.
    #[must_use]
    pub fn new(path: &Path) -> Self {
        let now = stamp(path);
        Self { path: path.to_owned(), handled: now, seen: now }
    }

    /// Has the file changed, and stood still since the question before? A file in the middle of being written is left alone
    /// until it rests (F87); each change is reported once.
    pub fn has_settled_change(&mut self) -> bool {
        let now = stamp(&self.path);
        let rests = now == self.seen;
        self.seen = now;
        let is_due = rests && now.is_some() && now != self.handled;
        if is_due {
            self.handled = now;
        }
        is_due
    }
}

/// The routing file of a running gateway.
#[derive(Debug)]
pub struct RoutingFile {
    path: PathBuf,
    forward: ForwardConfig,
    version: u64,
    content: Option<[u8; 32]>,
}

/// What a reload found.
#[derive(Debug)]
pub enum Reload {
    /// The routing in force is the one in the file.
    Unchanged,
    /// A newer one.
    Changed {
        /// To be put in force whole.
        routing: Routing,
        /// To be logged.
        warnings: Vec<Problem>,
    },
}

impl RoutingFile {
    /// Reads the file for the first time. When nobody named it and it is not there, the routing is empty, of version 0, and the
    /// file may appear later.
    ///
    /// # Errors
    /// Every problem at once.
    pub fn open(config: &Config, env: &dyn Environment) -> Result<(Self, Routing, Vec<Problem>), Problems> {
        let mut file =
            Self { path: config.routing_file.clone(), forward: config.forward.clone(), version: 0, content: None };
        if config.is_routing_optional && !file.path.exists() {
            let empty =
                Routing { version: 0, publishers: HashMap::new(), buyers: HashMap::new(), campaigns: HashMap::new() };
            let right = "a routing file here, or its path in routing.file";
            let wrong = "does not exist, so there is no campaign yet".to_owned();
            let warning = Problem { severity: Severity::Warning, ..file.problem(wrong, right) };
            return Ok((file, empty, vec![warning]));
        }
        let Loaded { routing, warnings, content } = routing::load(&file.path, &file.forward, env)?;
        file.version = routing.version;
        file.content = Some(content);
        Ok((file, routing, warnings))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file again. On an error nothing changes: the routing in force stays (F87).
    ///
    /// # Errors
    /// Every problem at once; a changed file whose version does not rise is one, because the store would refuse its takes as
    /// stale.
    pub fn reload(&mut self, env: &dyn Environment) -> Result<Reload, Problems> {
        let Loaded { routing, mut warnings, content } = routing::load(&self.path, &self.forward, env)?;
        if routing.version == self.version && self.content == Some(content) {
            return Ok(Reload::Unchanged);
        }
        if routing.version <= self.version {
            let wrong =
                format!("its version {} does not rise above {}, which is in force", routing.version, self.version);
            warnings.push(self.problem(wrong, "a higher version, or no version and a newer modification time"));
            return Err(Problems(warnings));
        }
        self.version = routing.version;
        self.content = Some(content);
        Ok(Reload::Changed { routing, warnings })
    }

    fn problem(&self, wrong: String, right: &str) -> Problem {
        Source::file(&self.path).problem(None, wrong, right)
    }
}
