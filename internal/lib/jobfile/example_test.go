package jobfile_test

import (
	"errors"
	"fmt"

	"berth/internal/lib/jobfile"
)

// Parse reports every fault of a file at once, each with its line and column.
func ExampleParse() {
	_, err := jobfile.Parse("train.yaml", []byte("name: train\nimage: python:3.12\nresources:\n  memory: 4 gigs\nmembers: 0\n"))
	file, ok := errors.AsType[*jobfile.Error](err)
	if !ok {
		fmt.Println(err)
		return
	}
	for _, fault := range file.Faults {
		fmt.Printf("%d:%d %s\n", fault.Line, fault.Column, fault.Field)
	}
	// Output:
	// 4:11 resources.memory
	// 5:10 members
}
