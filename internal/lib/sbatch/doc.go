// Package sbatch translates batch scripts of Slurm into job files: the lines that begin with
// #SBATCH, and the options of sbatch on a command line.
//
// Every known option of sbatch is an entry of Definitions, with its effect on the job file, or
// the reason why it has none. Translate reports each option without a counterpart as a finding
// with its line. A finding is a note where the loss leaves the results of the job unchanged, and
// a refusal where the results could change.
//
// The script itself becomes an argument of the container's command. A preamble for /bin/sh sets
// Slurm's variables from Berth's, and starts the script with its own interpreter. The preamble
// is a part of the job file, so users see and change all of it.
//
// The one rule to know: no option is lost in silence. Unknown options are refused, and so are
// variables and commands of Slurm in the script that the container will not have.
package sbatch
