//! `regard man`

use std::path::PathBuf;

use clap::{Args, Command, CommandFactory};
use clap_mangen::Man;
use regard_files::write_whole;
use serde_json::json;

use crate::{
    args::{Arguments, Common},
    error::{Failure, Outcome},
    output,
};

#[derive(Debug, Args)]
pub struct ManPages {
    /// Directory for one page per command; default: the page of the program to standard output.
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

/// Prints the manual page of the program, or writes those of all commands.
///
/// # Errors
/// Files or standard output that cannot be written.
pub fn run(args: &ManPages, common: &Common) -> Outcome {
    let mut program = Arguments::command();
    // Gives each command its whole name, as in `regard-data-list`, and the options common to all.
    program.build();
    let Some(out) = &args.out else { return output::bytes(&page(&program)) };
    let mut pages = Vec::new();
    collect(&program, &mut pages);
    let mut written = Vec::new();
    for command in pages {
        let path = out.join(format!("{}.1", name(command)));
        write_whole(&path, &page(command)).map_err(|error| Failure::written(&error))?;
        written.push(path.to_string_lossy().into_owned());
    }
    if common.json { output::json(&json!({ "pages": written })) } else { output::text(written.join("\n") + "\n") }
}

/// A command and all below it, without `help`.
fn collect<'a>(command: &'a Command, pages: &mut Vec<&'a Command>) {
    pages.push(command);
    for part in command.get_subcommands().filter(|part| part.get_name() != "help") {
        collect(part, pages);
    }
}

/// The name of a page: `regard-train` for `regard train`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// A page in the language of `man`.
fn page(command: &Command) -> Vec<u8> {
    let mut page = Vec::new();
    let source = format!("regard {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.clone()).source(source).manual("Regard");
    man.render(&mut page).expect("memory takes everything");
    // A title without a date, which the generator leaves out without its quotes.
    String::from_utf8(page).expect("text").replacen(" 1  \"", " 1 \"\" \"", 1).into_bytes()
}
