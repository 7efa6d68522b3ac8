// Package glossary is the table of Berth's words, from which docs/glossary.md is
// generated: each term once, with its meaning and the closest terms of Slurm, Kubernetes,
// Nomad and Temporal.
//
// The package also lists retired words. Its tests count the retired words in identifiers
// and documents, so that such a word does not come back.
package glossary
