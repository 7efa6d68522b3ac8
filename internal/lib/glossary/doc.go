// Package glossary is the table of Berth's words, from which docs/glossary.md is
// generated: each term once, with its meaning and the closest terms of Slurm,
// Kubernetes, Nomad and Temporal.
//
// The package also lists retired words. Its tests count them in identifiers and
// documents, so that a word that was given up does not come back.
package glossary
