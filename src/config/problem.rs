//! What is wrong with a configuration: said once for all of it, with place, value and what would be right.

use std::fmt;

use serde::Serialize;

/// Does it stop the gateway?
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// The configuration is refused.
    Error,
    /// It is taken, and probably not what was meant.
    Warning,
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "error",
            Self::Warning => "warning",
        })
    }
}

/// One thing that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file as it was named, `built-in defaults`, or the environment variable that holds the value.
    pub file: String,
    /// Line in that file, from 1.
    pub line: Option<usize>,
    /// Where in the file: `intake.listen`, `buyer[sunco].cap[1].leads`. Lists count from 1. Empty for the whole file.
    pub key: String,
    /// The value as written; `***` where it is a secret.
    pub value: Option<String>,
    /// What is wrong with it.
    pub wrong: String,
    /// What would be right.
    pub right: String,
    /// Does it stop the gateway?
    pub severity: Severity,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        write!(f, ": {}: ", self.severity)?;
        match (self.key.as_str(), &self.value) {
            ("", _) => {}
            (key, None) => write!(f, "{key}: ")?,
            (key, Some(value)) => write!(f, "{key} = {value}: ")?,
        }
        f.write_str(&self.wrong)?;
        if !self.right.is_empty() {
            write!(f, "; right would be: {}", self.right)?;
        }
        Ok(())
    }
}

/// Everything that is wrong, in the order of the files. Displays as one line per problem and a count.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Problems(pub Vec<Problem>);

impl Problems {
    /// How many of them stop the gateway.
    #[must_use]
    pub fn errors(&self) -> usize {
        self.0.iter().filter(|problem| problem.severity == Severity::Error).count()
    }

    /// Is there nothing to say?
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// `Ok` with the warnings when nothing stops the gateway.
    ///
    /// # Errors
    /// All of them, warnings included, when at least one is an error.
    pub fn into_warnings(self) -> Result<Vec<Problem>, Self> {
        if self.errors() == 0 { Ok(self.0) } else { Err(self) }
    }
}

impl From<Problem> for Problems {
    fn from(problem: Problem) -> Self {
        Self(vec![problem])
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for problem in &self.0 {
            writeln!(f, "{problem}")?;
        }
        let errors = self.errors();
        let warnings = self.0.len() - errors;
        let plural = |count: usize| if count == 1 { "" } else { "s" };
        write!(f, "{errors} error{}, {warnings} warning{}", plural(errors), plural(warnings))
    }
}

impl std::error::Error for Problems {}
