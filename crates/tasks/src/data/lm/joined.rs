//! One text of several.

/// Texts put together: each ends with a line end, and lines of paragraphs are joined where that was asked for.
#[derive(Debug)]
pub(super) struct Joined {
    /// What is there and was not taken away.
    pub text: String,
    paragraphs: bool,
    /// Whether a line has begun.
    begun: bool,
    /// Of paragraphs: the line that has not ended.
    line: String,
}

impl Joined {
    /// No text yet.
    pub fn new(paragraphs: bool) -> Self {
        Self { text: String::new(), paragraphs, begun: false, line: String::new() }
    }

    /// Appends a part of a text.
    pub fn push(&mut self, part: &str) {
        if !self.paragraphs {
            self.text.push_str(part);
            self.begun = if part.is_empty() { self.begun } else { !part.ends_with('\n') };
            return;
        }
        let mut lines = part.split('\n');
        self.line.push_str(lines.next().unwrap_or_default());
        for line in lines {
            self.end_of_line();
            self.line.push_str(line);
        }
    }

    /// Bytes of the line that has not ended, where lines are joined.
    pub fn held(&self) -> usize {
        self.line.len()
    }

    /// Ends a text.
    pub fn end(&mut self) {
        if !self.line.is_empty() {
            self.end_of_line();
        }
        self.close();
    }

    /// An empty line ends a paragraph and goes; the others are appended to theirs.
    fn end_of_line(&mut self) {
        let line = std::mem::take(&mut self.line);
        let words = line.trim();
        if words.is_empty() {
            self.close();
        } else {
            if self.begun {
                self.text.push(' ');
            }
            self.text.push_str(words);
            self.begun = true;
        }
    }

    fn close(&mut self) {
        if std::mem::take(&mut self.begun) {
            self.text.push('\n');
        }
    }
}
