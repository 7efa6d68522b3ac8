package fetch

import (
	"context"
	"os"
	"strings"

	"berth"
	"berth/spec"
)

// Folder opens the folder of a volume that an input names, for a mount. Its path is followed beneath
// the volume, so no link leads out of it; the opened folder stays the same if the path changes. An
// empty volume is refused, as it looks like one that is not mounted. The errors are the errors of
// Find. The caller closes the folder in the background: a dead file server may block the close.
func (s *Sources) Folder(ctx context.Context, in spec.Input) (*os.File, error) {
	name, key, err := spec.ParseFile(in.From)
	if err != nil {
		return nil, refusedf("%.200q: %v", in.From, err)
	}
	v, ok := s.volumes[name]
	if !ok {
		return nil, Local{berth.Errorf(berth.CodeUnavailable, "this machine does not share the folder %s", name)}
	}
	return call(ctx, v, func(func()) (*os.File, error) {
		root, err := v.root()
		if err != nil {
			return nil, err
		}
		defer root.Close()
		at := strings.TrimSuffix(key, "/")
		folder, _, err := v.enter(root, at)
		if err != nil {
			return nil, v.orAbsent(root, err)
		}
		if at == "" {
			err = v.orAbsent(root, nil)
		}
		if err != nil {
			_ = folder.Close()
			return nil, err
		}
		return folder, nil
	}, func(f *os.File) { _ = f.Close() })
}
