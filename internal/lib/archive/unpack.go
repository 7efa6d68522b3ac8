package archive

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// Unpack reads an archive into an empty folder that no other process uses. After an error the
// caller removes the written part; no part lies outside of the folder. Links are created last, so
// that no file is written through a link.
func Unpack(in io.Reader, dir *os.Root, l Limits) (Summary, error) {
	// links wait until every file is written: until then the folder holds no link to follow.
	var links []Entry
	made := map[string]bool{".": true}
	folder := func(name string) error {
		if made[name] {
			return nil
		}
		made[name] = true
		return dir.MkdirAll(name, 0o755)
	}
	sum, err := Read(in, l, func(e Entry, content io.Reader) error {
		if err := folder(path.Dir(e.Name)); err != nil {
			return err
		}
		switch e.Kind {
		case Folder:
			return folder(e.Name)
		case File:
			return writeFile(dir, e, content)
		case Link:
			links = append(links, e)
			return nil
		default:
			panic(fmt.Sprintf("unknown kind %d", e.Kind))
		}
	})
	if err != nil {
		return sum, err
	}
	for _, e := range links {
		if err := dir.Symlink(e.Target, e.Name); err != nil {
			return sum, fmt.Errorf("unpack: %w", err)
		}
	}
	return sum, nil
}

// writeFile creates a file, which must not exist yet.
func writeFile(dir *os.Root, e Entry, content io.Reader) error {
	mode := fs.FileMode(0o644)
	if e.Exec {
		mode = 0o755
	}
	f, err := dir.OpenFile(e.Name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	if closed := f.Close(); err == nil {
		err = closed
	}
	return err
}

// Copy copies an unpacked folder into another one, which a container of any user may
// change. own, if not nil, is called with each new path. It returns the summary of the folder, without an address.
func Copy(to, from *os.Root, own func(path string)) (Summary, error) {
	return each(to, from, 0o777, own, func(name string, mode fs.FileMode) (int64, error) {
		return copyFile(to, from, name, mode|0o666)
	})
}

// Share is Copy for a container without write access: files are hard links where the file system
// permits such links. A file exists as long as either folder does. No other process may write to
// either folder during the call.
func Share(to, from *os.Root) (Summary, error) {
	return each(to, from, 0o755, nil, func(name string, mode fs.FileMode) (int64, error) {
		if os.Link(filepath.Join(from.Name(), name),
			filepath.Join(to.Name(), name)) != nil { // other devices, too many links
			return copyFile(to, from, name, mode|0o644)
		}
		info, err := to.Lstat(name)
		if err != nil {
			return 0, err
		}
		return info.Size(), to.Chmod(name, mode|0o644) // for any umask
	})
}

// each creates the folders and links of a folder in another one, and calls file for each file: with
// mode 0o111 for a program, otherwise 0. A link is copied as a link, never followed: its target lies
// in the folder, by the rules that the content has passed. own, if not nil, is called with each new path.
func each(to, from *os.Root, folders fs.FileMode, own func(path string),
	file func(name string, mode fs.FileMode) (int64, error)) (sum Summary, err error) {
	err = fs.WalkDir(from.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		sum.Files++
		if own != nil {
			defer func() { // the path is the callback's own: nothing else runs before the next one
				if err == nil {
					own(name)
				}
			}()
		}
		switch {
		case d.IsDir():
			if err := to.Mkdir(name, folders); err != nil {
				return err
			}
			return to.Chmod(name, folders) // for any umask
		case d.Type()&fs.ModeSymlink != 0:
			target, err := from.Readlink(name)
			if err != nil {
				return err
			}
			return to.Symlink(target, name)
		case d.Type().IsRegular():
			info, err := d.Info()
			if err != nil {
				return err
			}
			mode := fs.FileMode(0)
			if info.Mode()&0o100 != 0 {
				mode = 0o111
			}
			n, err := file(name, mode)
			sum.Bytes += n
			return err
		default:
			return fmt.Errorf("%s is neither a folder, a file nor a link", name)
		}
	})
	return sum, err
}

// copyFile copies one file and returns its size. The mode applies under any umask.
func copyFile(to, from *os.Root, name string, mode fs.FileMode) (int64, error) {
	in, err := from.Open(name)
	if err != nil {
		return 0, err
	}
	defer in.Close()
	out, err := to.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return 0, err
	}
	n, err := io.Copy(out, in) // by the kernel, which may share the blocks
	if err == nil {
		err = out.Chmod(mode)
	}
	if closed := out.Close(); err == nil {
		err = closed
	}
	return n, err
}

// Clear removes the content of a folder, except the entry named except at its top. It stops at the
// first error, and may be called again.
func Clear(dir *os.Root, except string) error {
	f, err := dir.Open(".")
	if err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if closed := f.Close(); err == nil {
		err = closed
	}
	for _, name := range names {
		if name == except || err != nil {
			continue
		}
		err = dir.RemoveAll(name)
	}
	return err
}
