package firewall

import (
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

// nft runs a script in the network namespace of a path, as one transaction.
func nft(ctx context.Context, space, script string, flags ...string) error {
	program, err := lookUp()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, nftTimeout)
	defer cancel()
	return netns.Do(space, func() error {
		cmd := exec.CommandContext(ctx, program, append(flags, "--file", "-")...)
		cmd.Stdin = strings.NewReader(script)
		out, err := cmd.CombinedOutput()
		if err != nil {
			return fmt.Errorf("nft: %w: %s", err, firstLine(out))
		}
		return nil
	})
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
