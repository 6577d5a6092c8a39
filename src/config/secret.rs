//! Values that stand elsewhere: `"env:NAME"` and `"file:PATH"`.

use std::path::Path;

use super::env::Environment;
use super::tree;
use crate::domain::routing::Secret;

/// Does the text say where the secret is, rather than being it?
pub(super) fn is_reference(text: &str) -> bool {
    text.starts_with("env:") || text.starts_with("file:")
}

/// The secret behind the text; the error says what is wrong and never the secret.
pub(super) fn resolve(text: &str, base: &Path, env: &dyn Environment) -> Result<Secret, String> {
    let value = if let Some(name) = text.strip_prefix("env:") {
        env.get(name).ok_or_else(|| format!("environment variable {name} is not set"))?
    } else if let Some(path) = text.strip_prefix("file:") {
        let path = base.join(path);
        let whole = tree::read_file(&path).map_err(|problem| format!("{} {}", problem.file, problem.wrong))?;
        // Editors and `echo` end a file with a newline that is no part of the secret.
        whole.strip_suffix("\r\n").or(whole.strip_suffix('\n')).unwrap_or(&whole).to_owned()
    } else {
        text.to_owned()
    };
    if value.is_empty() { Err("is empty".to_owned()) } else { Ok(Secret::new(&value)) }
}
