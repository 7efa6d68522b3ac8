// Package calendar reads when a schedule fires, and says which times those are.
//
// What it reads is handed to Temporal as sets of numbers and not as text, so
// that there is one reading of a cron line: the usual one, in which a day of
// the month and a day of the week that are both given mean either.
//
// The one rule to know: it is pure. Times come in as arguments.
package calendar
