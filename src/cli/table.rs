//! Tables on the terminal.

use std::ops::Range;

/// Columns as wide as their widest cell, two spaces apart. Words stand to the left, `numbers` to the right.
pub(super) fn table(header: &[&str], rows: Vec<Vec<String>>, numbers: &Range<usize>) -> String {
    let mut lines = vec![header.iter().map(|title| (*title).to_owned()).collect::<Vec<_>>()];
    lines.extend(rows);
    let width = |column: usize| {
        lines.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate();
        let cells: Vec<String> = cells
            .map(
                |(column, (cell, &width))| {
                    if numbers.contains(&column) { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
                },
            )
            .collect();
        format!("{}\n", cells.join("  ").trim_end())
    };
    lines.iter().map(line).collect()
}
