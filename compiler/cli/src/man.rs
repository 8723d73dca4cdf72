//! `zbmdc man`: the manual, made of the help texts.

use std::path::Path;

use clap::CommandFactory;

use crate::args::Cli;
use crate::output::{Exit, Voice, deliver, say};

pub(crate) fn write_man_pages(folder: Option<&Path>, voice: Voice) -> Exit {
    let mut command = Cli::command();
    command.build();
    let Some(folder) = folder else {
        return match render_page(command) {
            Ok(page) => deliver(&page, None, voice),
            Err(error) => say_render_error(&error),
        };
    };

    if let Err(error) = std::fs::create_dir_all(folder) {
        say(&format!(
            "zbmdc: cannot make `{}`: {error}\n",
            folder.display()
        ));
        return Exit::File;
    }

    // `help` has a page for each subcommand of its own: none is worth one.
    let subcommands = command
        .get_subcommands()
        .filter(|sub| sub.get_name() != "help");
    for command in subcommands.chain([&command]).cloned() {
        let name = command.get_display_name().unwrap_or(command.get_name());
        let path = folder.join(format!("{name}.1"));
        let written = match render_page(command) {
            Ok(page) => deliver(&page, Some(&path), voice),
            Err(error) => say_render_error(&error),
        };
        if written != Exit::Ok {
            return written;
        }
    }

    Exit::Ok
}

fn render_page(command: clap::Command) -> std::io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}

fn say_render_error(error: &std::io::Error) -> Exit {
    say(&format!("zbmdc: cannot write a page: {error}\n"));
    Exit::File
}
