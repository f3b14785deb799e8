//! Where Python's text functions differ from Rust's.

/// Python's `str.isspace`: Unicode's white space and the four separators U+001C to U+001F.
pub fn is_space(letter: char) -> bool {
    letter.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&letter)
}

pub fn strip(text: &str) -> &str {
    text.trim_matches(is_space)
}

pub fn lstrip(text: &str) -> &str {
    text.trim_start_matches(is_space)
}

/// `urllib.parse.unquote`: %XX as UTF-8, bad bytes as U+FFFD, a bad escape as it stands.
pub fn unquote(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut plain = Vec::with_capacity(bytes.len());
    let mut place = 0;
    while place < bytes.len() {
        let digits = text.get(place + 1..place + 3).filter(|two| two.bytes().all(|digit| digit.is_ascii_hexdigit()));
        match (bytes[place], digits.and_then(|two| u8::from_str_radix(two, 16).ok())) {
            (b'%', Some(byte)) => {
                plain.push(byte);
                place += 3;
            }
            (byte, _) => {
                plain.push(byte);
                place += 1;
            }
        }
    }
    String::from_utf8_lossy(&plain).into_owned()
}

/// `float(text)`; None where it raises.
pub fn float(text: &str) -> Option<f64> {
    let text = strip(text);
    let bytes = text.as_bytes();
    let between_digits = |place: usize| {
        let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
        place > 0 && digit(place - 1) && digit(place + 1)
    };
    if !bytes.iter().enumerate().all(|(place, byte)| *byte != b'_' || between_digits(place)) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// `repr` of a float: the shortest digits, with an exponent below 1e-4 and from 1e16 on.
pub fn float_repr(value: f64) -> String {
    if value.is_nan() {
        return "nan".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "inf".into() } else { "-inf".into() };
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').expect("an exponent was asked for");
    let exponent: i32 = exponent.parse().expect("an exponent is a number");
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}"); // Rust, too, has no exponent there
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_read_as_python_reads_them() {
        assert_eq!(float(" 1_0.5\n"), Some(10.5));
        assert_eq!(float("1__0"), None);
        assert_eq!(float("_1"), None);
        assert_eq!(float("x"), None);
        assert_eq!(float("1e9"), Some(1e9));
        assert!(float("nan").is_some_and(f64::is_nan));
    }

    #[test]
    fn floats_are_printed_as_python_prints_them() {
        for (value, text) in [
            (1e16, "1e+16"),
            (9999999999999998.0, "9999999999999998.0"),
            (1e-5, "1e-05"),
            (0.0001, "0.0001"),
            (1.5e300, "1.5e+300"),
            (0.5, "0.5"),
            (-0.0, "-0.0"),
            (f64::NEG_INFINITY, "-inf"),
        ] {
            assert_eq!(float_repr(value), text);
        }
    }

    #[test]
    fn escapes_of_a_path_become_characters() {
        assert_eq!(unquote("/v1/models/org%2Fm%c3%a9"), "/v1/models/org/mé");
        assert_eq!(unquote("%zz%"), "%zz%");
        assert_eq!(unquote("%ff"), "\u{fffd}");
    }
}
