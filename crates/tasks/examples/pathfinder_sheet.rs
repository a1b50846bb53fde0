//! Writes a page of Pathfinder pictures as a PNG, framed green where one contour joins the discs and red where none does.
//!
//!     cargo run -p regard-tasks --example pathfinder_sheet -- 32 hard sheet.png

use std::{env, error::Error, path::Path};

use regard_tasks::data::pathfinder::{Difficulty, PathfinderConfig, sheet};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [size, difficulty, path] = &arguments[..] else {
        return Err("expected the size of the pictures, easy, intermediate or hard, and the file to write".into());
    };
    let levels = [Difficulty::Easy, Difficulty::Intermediate, Difficulty::Hard];
    let difficulty = levels.into_iter().find(|level| level.name() == difficulty).ok_or("no such difficulty")?;
    let config = PathfinderConfig { size: size.parse()?, difficulty, ..PathfinderConfig::default() };
    let columns = if config.size > 64 { 4 } else { 7 };
    Ok(regard_files::write_whole(Path::new(path), &sheet(&config, 1, 4, columns)?)?)
}
