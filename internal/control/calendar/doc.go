// Package calendar parses cron lines and computes the times at which a schedule
// fires.
//
// Temporal receives the parsed sets of numbers instead of the text, so that one
// parser alone interprets a cron line. It follows cron's custom: a day of the
// month and a day of the week that are both given mean either.
//
// The one rule to know: the package is pure. Times are arguments.
package calendar
