//! The files that come with the project.

use std::path::Path;
use std::process::ExitCode;

use capgate::cli;
use capgate::config;

use crate::support::{Folder, Vars};

fn example() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("config/example/capgate.toml")
}

#[test]
fn the_example_has_no_problems() {
    let problems = config::check(Some(&example()), &Vars::default());
    assert!(problems.is_empty(), "{problems}");
    let config = config::load(Some(&example()), &Vars::default()).expect("good");
    let (routing, warnings) =
        config::load_routing(&config.routing_file, &config.forward, &Vars::default()).expect("good");
    assert!(warnings.is_empty());
    assert_eq!((routing.publishers.len(), routing.buyers.len(), routing.campaigns.len()), (3, 5, 2));
}

#[test]
fn the_example_keys_are_the_documented_ones() {
    use sha2::{Digest as _, Sha256};
    let config = config::load(Some(&example()), &Vars::default()).expect("good");
    let (routing, _) = config::load_routing(&config.routing_file, &config.forward, &Vars::default()).expect("good");
    for (id, publisher) in &routing.publishers {
        let hash: [u8; 32] = Sha256::digest(format!("demo-key-{id}")).into();
        assert_eq!(publisher.keys[0].0, hash, "{id}");
    }
}

#[test]
fn check_tells_the_problems_of_both_files() {
    let folder = Folder::new();
    folder.write("routing.toml", "[[buyer]]\nid = \"b\"\n");
    let path = folder.write("capgate.toml", "[intake]\nlisten = 5\n[routing]\nfile = \"routing.toml\"\n");
    let problems = config::check(Some(&path), &Vars::default());
    let text = problems.to_string();
    assert!(text.contains("intake.listen") && text.contains("buyer[b].url"), "{text}");
    assert_eq!(problems.errors(), 2, "{text}");
}

#[test]
fn check_exits_with_78_only_for_errors() {
    assert_eq!(cli::check::run(Some(&example())), ExitCode::SUCCESS);
    let folder = Folder::new();
    let routing = "[[publisher]]\nid = \"a\"\npayout = { flat = \"1\" }\n";
    folder.write("routing.toml", routing);
    let path = folder.write("capgate.toml", "[routing]\nfile = \"routing.toml\"\n");
    assert_eq!(cli::check::run(Some(&path)), ExitCode::SUCCESS, "a warning is no error");
    folder.write("routing.toml", &format!("speed = 1\n{routing}"));
    assert_eq!(cli::check::run(Some(&path)), ExitCode::from(78));
    assert_eq!(cli::check::run(Some(&folder.path("none.toml"))), ExitCode::from(78));
}
