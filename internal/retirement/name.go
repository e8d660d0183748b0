package retirement

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// longestName is the API server's limit, in bytes.
const longestName = 253

// Name is that of a NodeRetirement that a rule asks for: the node's, the rule's, and a hash of what makes it this one and no
// other, such as the Node's UID, since when it could go, and what was tried before. Whoever decides the same asks for the
// same, so that two managers cannot ask twice. It keeps within the length of a name, which a node's alone may have.
func Name(node, rule string, identity ...any) string {
	sum := sha256.Sum256(fmt.Appendln(nil, identity...))
	tail := "-" + rule + "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(node[:min(len(node), longestName-len(tail))], ".-") + tail
}
