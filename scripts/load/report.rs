//! The scenes, their rounds, and the table.

use std::collections::BTreeMap;
use std::fs;

use serde::{Deserialize, Serialize};

use crate::measure::{self, Figures, Scene, Servers, Side};
use crate::world::{self, Buyers};
use crate::{Failure, RunArgs};

const FEW: Buyers = Buyers { eligible: 10, elsewhere: 0, full: 0 };

/// A median of runs, and whether one of them was disturbed.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
struct Median {
    figures: Figures,
    is_disturbed: bool,
}

/// What is written as JSON.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Results {
    /// By scene and side.
    runs: BTreeMap<String, BTreeMap<Side, Median>>,
    /// The table: name and value.
    rows: BTreeMap<String, f64>,
}

/// The loads, and which sides carry each of them.
fn scenes(is_quick: bool) -> Vec<(Scene, Vec<Side>)> {
    let seconds = if is_quick { 4 } else { 10 };
    let scene = |name, pace, delay_ms| Scene { name, pace, buyers: FEW, delay_ms, is_rough: false };
    let both = vec![Side::Floor, Side::Gateway];
    let saturated = scene("64 connections", measure::closed(64, seconds), 0);
    let steady = scene("1,000/s", measure::open(1_000, seconds), 20);
    vec![
        (saturated, vec![Side::Floor, Side::Gateway, Side::Embedded]),
        (scene("256 connections, 20 ms", measure::closed(256, seconds), 20), both.clone()),
        (steady, vec![Side::Floor, Side::Gateway, Side::Embedded]),
        (scene("2,000/s", measure::open(2_000, seconds), 20), both),
        (Scene { is_rough: true, ..scene("rough", measure::open(500, seconds), 20) }, vec![Side::Gateway]),
        (Scene { name: "10,000 buyers", buyers: Buyers { elsewhere: 9_990, ..FEW }, ..steady }, vec![Side::Gateway]),
        (Scene { name: "1,000 full", buyers: Buyers { full: 1_000, ..FEW }, ..steady }, vec![Side::Gateway]),
        (Scene { name: "1,000 buyers", buyers: Buyers { eligible: 1_000, ..FEW }, ..saturated }, vec![Side::Gateway]),
    ]
}

/// Measures and prints.
pub async fn run(args: RunArgs) -> Result<(), Failure> {
    let servers = Servers { redis: args.redis, mysql: args.mysql };
    let program = args.capgate.map_or_else(world::capgate_beside, Ok)?;
    let rounds = if args.quick { 1 } else { args.rounds.max(1) };
    let mut scenes = scenes(args.quick);
    scenes.retain(|(scene, _)| args.only.as_ref().is_none_or(|part| scene.name.contains(part.as_str())));
    let mut all: BTreeMap<String, BTreeMap<Side, Vec<Figures>>> = BTreeMap::new();
    for round in 1..=rounds {
        for (scene, sides) in &scenes {
            for &side in sides {
                eprintln!("round {round} of {rounds}: {} on {side:?}", scene.name);
                let figures = measure::run(side, scene, &servers, &program).await?;
                all.entry(scene.name.to_owned()).or_default().entry(side).or_default().push(figures);
            }
        }
    }
    let mut results = Results::default();
    for (scene, sides) in &all {
        let medians = sides.iter().map(|(side, runs)| (*side, median(runs))).collect();
        results.runs.insert(scene.clone(), medians);
    }
    results.rows = rows(&results);
    let earlier: Option<Results> =
        args.compare.map(|file| Ok::<_, Failure>(serde_json::from_slice(&fs::read(file)?)?)).transpose()?;
    print_runs(&results);
    print_rows(&results, earlier.as_ref());
    if let Some(file) = args.json {
        fs::write(file, serde_json::to_vec_pretty(&results)?)?;
    }
    Ok(())
}

/// Each figure's median by itself.
fn median(runs: &[Figures]) -> Median {
    let maps: Vec<BTreeMap<String, f64>> = runs.iter().map(as_map).collect();
    let mut middle = BTreeMap::new();
    for name in maps.first().into_iter().flat_map(BTreeMap::keys) {
        let mut values: Vec<f64> = maps.iter().filter_map(|map| map.get(name)).copied().collect();
        values.sort_by(f64::total_cmp);
        middle.insert(name.clone(), values[(values.len() - 1) / 2]);
    }
    let figures = serde_json::to_value(&middle).and_then(serde_json::from_value).unwrap_or_default();
    Median { figures, is_disturbed: runs.iter().any(measure::is_disturbed) }
}

fn as_map(figures: &Figures) -> BTreeMap<String, f64> {
    serde_json::to_value(figures).and_then(serde_json::from_value).unwrap_or_default()
}

fn print_runs(results: &Results) {
    println!(
        "{:<24}{:<9}{:>9}{:>8}{:>8}{:>8}{:>8}{:>7}{:>7}{:>7}{:>7}{:>7}",
        "", "", "leads/s", "p50 ms", "p99", "p99.9", "max", "own us", "redis", "books", "buyer", "load"
    );
    for (scene, sides) in &results.runs {
        for (side, Median { figures: of, is_disturbed }) in sides {
            println!(
                "{scene:<24}{:<9}{:>9.0}{:>8.2}{:>8.2}{:>8.2}{:>8.1}{:>7.0}{:>7.0}{:>7.0}{:>7.0}{:>7.0}{}",
                format!("{side:?}").to_lowercase(),
                of.leads_per_second,
                of.p50_ms,
                of.p99_ms,
                of.p999_ms,
                of.max_ms,
                of.cpu_own,
                of.cpu_redis,
                of.cpu_database,
                of.cpu_buyer,
                of.cpu_load,
                if *is_disturbed { "  disturbed" } else { "" }
            );
        }
    }
}

/// Names of the table, and what each should be.
const TARGETS: [(&str, &str); 22] = [
    ("throughput / floor, 64 connections", "at least 0.42"),
    ("throughput / floor, 256 connections, 20 ms", "at least 0.88"),
    ("own CPU / floor, saturated", "at most 1.7"),
    ("own CPU / floor, 1,000/s", "at most 1.5"),
    ("p50 above the buyer, 1,000/s, ms", "at most 0.6"),
    ("p50 above the buyer, 2,000/s, ms", "at most 0.6"),
    ("p99 above the floor, 1,000/s, ms", "at most 3.5"),
    ("p99 above the floor, 2,000/s, ms", "at most 3.5"),
    ("rough buyers, p99, ms", "at most 250"),
    ("rough buyers, max, ms", "at most 300"),
    ("store calls per lead", "2 and settlement's"),
    ("Redis CPU per lead, saturated, us", "at most 40"),
    ("Redis socket reads per lead, saturated", "at most 0.3"),
    ("database CPU per lead, saturated, us", "at most 30"),
    ("rows per INSERT, saturated", "at least 50"),
    ("drain after the load, saturated, s", "at most 1"),
    ("10,000 buyers / 10: own CPU", "at most 1.10"),
    ("10,000 buyers - 10: p99, ms", "at most 1"),
    ("1,000 full buyers / none: own CPU", "at most 1.3"),
    ("1,000 full buyers - none: store calls", "0"),
    ("memory at rest, 1,000 buyers, MiB", "at most 64"),
    ("memory saturated, MiB", "at most 200"),
];

fn rows(results: &Results) -> BTreeMap<String, f64> {
    let get = |scene: &str, side: Side, figure: fn(&Figures) -> f64| {
        results.runs.get(scene).and_then(|sides| sides.get(&side)).map(|median| figure(&median.figures))
    };
    let ours = |scene: &str, figure| get(scene, Side::Gateway, figure);
    let ratio = |scene: &str, figure| Some(ours(scene, figure)? / get(scene, Side::Floor, figure)?);
    let above_floor = |scene: &str| Some(ours(scene, |of| of.p99_ms)? - get(scene, Side::Floor, |of| of.p99_ms)?);
    let (full, many, steady) = ("1,000 full", "10,000 buyers", "1,000/s");
    let saturated = "64 connections";
    let values = [
        ratio(saturated, |of| of.leads_per_second),
        ratio("256 connections, 20 ms", |of| of.leads_per_second),
        ratio(saturated, |of| of.cpu_own),
        ratio(steady, |of| of.cpu_own),
        ours(steady, |of| of.p50_ms - 20.0),
        ours("2,000/s", |of| of.p50_ms - 20.0),
        above_floor(steady),
        above_floor("2,000/s"),
        ours("rough", |of| of.p99_ms),
        ours("rough", |of| of.max_ms),
        ours(steady, |of| of.store_calls),
        ours(saturated, |of| of.cpu_redis),
        ours(saturated, |of| of.redis_reads),
        ours(saturated, |of| of.cpu_database),
        ours(saturated, |of| of.rows_per_insert),
        ours(saturated, |of| of.drain_s),
        ours(many, |of| of.cpu_own).zip(ours(steady, |of| of.cpu_own)).map(|(many, few)| many / few),
        ours(many, |of| of.p99_ms).zip(ours(steady, |of| of.p99_ms)).map(|(many, few)| many - few),
        ours(full, |of| of.cpu_own).zip(ours(steady, |of| of.cpu_own)).map(|(full, none)| full / none),
        ours(full, |of| of.store_calls).zip(ours(steady, |of| of.store_calls)).map(|(full, none)| full - none),
        ours("1,000 buyers", |of| of.memory_rest_mib),
        ours("1,000 buyers", |of| of.memory_most_mib),
    ];
    TARGETS.iter().zip(values).filter_map(|((name, _), value)| Some(((*name).to_owned(), value?))).collect()
}

fn print_rows(results: &Results, earlier: Option<&Results>) {
    println!("\n{:<46}{:>10}  {:<20}{}", "", "measured", "target", if earlier.is_some() { "earlier" } else { "" });
    for (name, target) in TARGETS {
        let Some(value) = results.rows.get(name) else { continue };
        let before = earlier.and_then(|earlier| earlier.rows.get(name));
        println!(
            "{name:<46}{value:>10.2}  {target:<20}{}",
            before.map_or(String::new(), |value| format!("{value:.2}"))
        );
    }
}
