//! Names, help and parsing of an option whose values are the rows of a table.

/// Implements `row`, `name`, `about`, `Display` and `FromStr` for the value type of an option, from
/// a table `ROWS` whose rows have a `value`, a `name` and an `about`.
macro_rules! named {
    ($ty:ident, $option:literal) => {
        impl $ty {
            fn row(self) -> &'static Row {
                ROWS.iter().find(|row| row.value == self).unwrap_or(&ROWS[0])
            }

            /// Its name in options.
            pub fn name(self) -> &'static str {
                self.row().name
            }

            /// One line about it, for help texts.
            pub fn about(self) -> &'static str {
                self.row().about
            }
        }

        impl std::fmt::Display for $ty {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $ty {
            type Err = crate::QuantizeError;

            fn from_str(name: &str) -> Result<$ty, crate::QuantizeError> {
                ROWS.iter().find(|row| row.name == name).map(|row| row.value).ok_or_else(|| {
                    let names: Vec<&str> = ROWS.iter().map(|row| row.name).collect();
                    let what = format!("is `{name}`, expected one of {}", names.join(", "));
                    crate::QuantizeError::option($option, what)
                })
            }
        }

        #[cfg(test)]
        mod tests {
            use super::*;

            #[test]
            fn every_value_has_a_row_and_a_name_that_is_read_back() {
                for value in $ty::ALL {
                    assert_eq!(value.row().value, *value);
                    assert_eq!(value.name().parse::<$ty>().unwrap(), *value);
                    assert_eq!(serde_json::to_string(value).unwrap(), format!("\"{value}\""));
                    assert!(!value.about().is_empty());
                }
                assert_eq!($ty::ALL.len(), ROWS.len());
                let error = "no such value".parse::<$ty>().unwrap_err().to_string();
                let last = ROWS[ROWS.len() - 1].name;
                assert!(error.contains($option) && error.contains(last), "{error}");
            }
        }
    };
}

pub(super) use named;
