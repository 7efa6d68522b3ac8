package firewall

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"berth/internal/lib/netns"
)

// nftTimeout bounds one run of nft, which takes some milliseconds. A kernel that does not answer
// must not keep the agent from stopping.
const nftTimeout = 30 * time.Second

// sbin are the folders of nft, which the PATH of services often lacks.
var sbin = []string{"/usr/sbin", "/sbin", "/usr/local/sbin"}

// errNoTable reports that a table to be listed does not exist.
var errNoTable = errors.New("there is no such table")

// nft runs a script in the network namespace of a path, as one transaction.
func nft(ctx context.Context, space, script string, flags ...string) error {
	_, err := runNFT(ctx, space, script, append(flags, "--file", "-")...)
	return err
}

// runNFT runs nft in the network namespace of a path and returns its output.
func runNFT(ctx context.Context, space, input string, args ...string) ([]byte, error) {
	program, err := lookUp()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	var out, faults bytes.Buffer
	err = netns.Do(space, func() error {
		cmd := exec.CommandContext(ctx, program, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &faults
		return cmd.Run()
	})
	switch {
	case err == nil:
		return out.Bytes(), nil
	case strings.Contains(faults.String(), "No such file or directory"):
		err = fmt.Errorf("%w: %w", errNoTable, err)
	}
	return nil, fmt.Errorf("nft: %w: %s", err, firstLine(faults.Bytes()))
}

// lookUp finds nft in PATH or in the folders for system programs.
func lookUp() (string, error) {
	path, err := exec.LookPath("nft")
	for _, dir := range sbin {
		if err == nil {
			break
		}
		path, err = exec.LookPath(filepath.Join(dir, "nft"))
	}
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, exec.ErrNotFound) {
		return "", errors.New("the program nft is not installed: install the package nftables")
	}
	return path, err
}

// firstLine returns the first line of a program's output, which names the fault.
func firstLine(out []byte) string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return line
}
