// Package diskuse measures the disk space that containers use, and the space that their file
// systems have left.
//
// The folders belong to hostile programs, which change them during a measurement. Tree therefore
// opens each folder relative to its parent and follows no link, counts allocated blocks and not
// the sizes that sparse files claim, and needs memory for the depth of the tree alone.
package diskuse
