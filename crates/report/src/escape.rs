//! Escaping of arbitrary text for XML and HTML.

/// Escapes markup and quotes and drops the control characters that XML cannot hold.
pub fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            '\t' | '\n' => safe.push(character),
            '\u{fffe}' | '\u{ffff}' => {}
            other if other.is_control() => {}
            other => safe.push(other),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::escape;

    #[test]
    fn markup_and_controls() {
        assert_eq!(
            escape("<a b=\"c\" d='e'>&\u{0}\u{1b}\u{ffff}é\n"),
            "&lt;a b=&quot;c&quot; d=&#39;e&#39;&gt;&amp;é\n"
        );
    }
}
