package fusetest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// Content is the content of the file set/a.txt.
const Content = "a file of the server\n"

// Operations of the protocol, see fuse.h of Linux.
const (
	opLookup      = 1
	opForget      = 2
	opGetattr     = 3
	opOpen        = 14
	opRead        = 15
	opStatfs      = 17
	opRelease     = 18
	opFlush       = 25
	opInit        = 26
	opOpendir     = 27
	opReaddir     = 28
	opReleasedir  = 29
	opInterrupt   = 36
	opBatchForget = 42
)

// The nodes of the tree.
const (
	root = iota + 1
	set  // root/set
	file // root/set/a.txt
)

// Server is a mounted file system of which a test decides whether it answers.
type Server struct {
	dev int // its file descriptor

	mu     sync.Mutex
	dead   bool
	unread []request // asked while it was dead
}

// request is one question of the kernel.
type request struct {
	op           uint32
	unique, node uint64
	body         []byte
}

// Mount mounts a server at dir until the end of the test. It skips the test if the kernel, or this
// process, cannot mount one.
func Mount(t testing.TB, dir string) *Server {
	t.Helper()
	dev, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no FUSE: %v", err)
	}
	if err := unix.Mount("fusetest", dir, "fuse", unix.MS_NOSUID|unix.MS_NODEV,
		fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", dev)); err != nil {
		_ = unix.Close(dev)
		t.Skipf("mount FUSE: %v", err)
	}
	end, ended, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{dev: dev}
	var serving sync.WaitGroup
	serving.Go(func() { s.serve(int32(end.Fd())) })
	var mounted unix.Stat_t
	if err := unix.Stat(dir, &mounted); err != nil {
		t.Errorf("the server does not answer: %v", err)
	}
	t.Cleanup(func() {
		_ = unix.Unmount(dir, unix.MNT_DETACH)
		// It ends all waits for an answer. Where fusectl is not mounted, the close of dev does.
		_ = os.WriteFile(fmt.Sprintf("/sys/fs/fuse/connections/%d/abort", unix.Minor(mounted.Dev)), []byte("1"), 0)
		_ = ended.Close()
		serving.Wait()
		_ = unix.Close(dev) // ends all waits for an answer
		_ = end.Close()
	})
	return s
}

// Die stops all answers.
func (s *Server) Die() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
}

// Revive answers all questions since Die, and later ones.
func (s *Server) Revive() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = false
	for _, r := range s.unread {
		s.answer(r)
	}
	s.unread = nil
}

// Asked reports how many questions about the tree wait for an answer. The kernel announces the end of
// earlier uses at any later time; these announcements do not count.
func (s *Server) Asked() (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.unread {
		switch r.op {
		case opForget, opBatchForget, opInterrupt, opRelease, opReleasedir:
		default:
			n++
		}
	}
	return n
}

// ReadFile reads a file below a mount of this process. A program of the same process must not open one
// with package os: the runtime adds each opened file to its poller without giving up its processor,
// the kernel then asks the server, and the server may wait for that processor for good.
func ReadFile(path string) (string, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	var text []byte
	for buffer := make([]byte, 4096); ; {
		n, err := unix.Read(fd, buffer)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return "", fmt.Errorf("read %s: %w", path, err)
		case n == 0:
			return string(text), nil
		default:
			text = append(text, buffer[:n]...)
		}
	}
}

// serve reads the kernel's questions until the other end of a pipe is closed. Not with os.File, whose
// poller does not wake for this device.
func (s *Server) serve(end int32) {
	buffer := make([]byte, 1<<20)
	for {
		wait := []unix.PollFd{{Fd: int32(s.dev), Events: unix.POLLIN}, {Fd: end, Events: unix.POLLIN}}
		if _, err := unix.Poll(wait, -1); err != nil && !errors.Is(err, unix.EINTR) || wait[1].Revents != 0 {
			return
		}
		n, err := unix.Read(s.dev, buffer)
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENOENT):
			continue // ENOENT: the question was given up meanwhile
		case err != nil || n < 40:
			return
		}
		r := request{
			op: binary.NativeEndian.Uint32(buffer[4:]), unique: binary.NativeEndian.Uint64(buffer[8:]),
			node: binary.NativeEndian.Uint64(buffer[16:]), body: bytes.Clone(buffer[40:n]),
		}
		s.mu.Lock()
		if s.dead {
			s.unread = append(s.unread, r)
		} else {
			s.answer(r)
		}
		s.mu.Unlock()
	}
}

// answer answers one question. s.mu is held.
func (s *Server) answer(r request) {
	fault, body := int32(0), any(nil)
	switch r.op {
	case opForget, opBatchForget, opInterrupt: // which have no answer
		return
	case opInit:
		body = [16]uint32{7, 31, 1 << 17, 0, 0, 1 << 17, 1}
	case opLookup:
		switch name := string(bytes.TrimRight(r.body, "\x00")); {
		case r.node == root && name == "set":
			body = entry(set)
		case r.node == set && name == "a.txt":
			body = entry(file)
		default:
			fault = -int32(unix.ENOENT)
		}
	case opGetattr:
		body = [2]any{[2]uint64{}, attributes(r.node)}
	case opOpen, opOpendir:
		body = [2]uint64{0, 1} // FOPEN_DIRECT_IO: each read asks
	case opRead:
		body = []byte(Content)[min(binary.NativeEndian.Uint64(r.body[8:]), uint64(len(Content))):]
	case opReaddir:
		body = names(r.node, binary.NativeEndian.Uint64(r.body[8:]))
	case opStatfs:
		body = [10]uint64{}
	case opRelease, opReleasedir, opFlush:
	default:
		fault = -int32(unix.ENOSYS)
	}
	var answer bytes.Buffer
	put(&answer, body)
	var head bytes.Buffer
	put(&head, [2]uint32{uint32(16 + answer.Len()), uint32(fault)})
	put(&head, r.unique)
	_, _ = unix.Write(s.dev, append(head.Bytes(), answer.Bytes()...)) // an error: the question has been given up
}

// put writes values in the order and size of the kernel's structs.
func put(to *bytes.Buffer, v any) {
	switch v := v.(type) {
	case nil:
	case []byte:
		to.Write(v)
	case [2]any:
		put(to, v[0])
		put(to, v[1])
	default:
		_ = binary.Write(to, binary.NativeEndian, v) // to memory
	}
}

// attr is struct fuse_attr.
type attr struct {
	Ino, Size, Blocks, Atime, Mtime, Ctime uint64
	Nanos                                  [3]uint32
	Mode, Nlink, UID, GID, Rdev, Block     uint32
	Flags                                  uint32
}

// attributes returns the state of a node. All of it is valid for no time at all.
func attributes(node uint64) attr {
	a := attr{Ino: node, Mode: unix.S_IFDIR | 0o755, Nlink: 2, Mtime: 1, Ctime: 1, Block: 4096}
	if node == file {
		a.Mode, a.Nlink, a.Size = unix.S_IFREG|0o644, 1, uint64(len(Content))
	}
	return a
}

// entry is the answer to a lookup of a node.
func entry(node uint64) any { return [2]any{[5]uint64{node}, attributes(node)} }

// names is the answer to a read of a folder.
func names(node, from uint64) []byte {
	child, name := uint64(set), "set"
	if node == set {
		child, name = file, "a.txt"
	}
	if from > 0 {
		return nil
	}
	var b bytes.Buffer
	put(&b, [2]uint64{child, 1})
	put(&b, [2]uint32{uint32(len(name)), (attributes(child).Mode & unix.S_IFMT) >> 12})
	b.WriteString(name)
	b.Write(make([]byte, -len(name)&7))
	return b.Bytes()
}
