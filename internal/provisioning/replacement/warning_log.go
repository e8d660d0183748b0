package replacement

import "sync"

// warningLog has the warnings that were logged about each open replacement. A reconcile of a replacement finds the same problem
// every few seconds. It is safe for concurrent use.
type warningLog struct {
	mu sync.Mutex
	// logged has the detail of each warning that still applies, by NodeRetirement and message.
	logged map[string]map[string]string
}

// recordWarning records a warning, and reports whether it is new or has changed. Without a detail the warning has ended.
func (w *warningLog) recordWarning(retirement, message, detail string) (isNew bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.logged == nil {
		w.logged = map[string]map[string]string{}
	}
	if w.logged[retirement] == nil {
		w.logged[retirement] = map[string]string{}
	}
	isNew = detail != "" && w.logged[retirement][message] != detail
	w.logged[retirement][message] = detail
	return isNew
}

// forget removes the warnings about a replacement that is finished.
func (w *warningLog) forget(retirement string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.logged, retirement)
}

// warnOnChange logs a warning if its error is new or has changed. A nil error ends the warning.
func (l *replacementScope) warnOnChange(message string, err error) {
	detail := ""
	if err != nil {
		detail = err.Error()
	}
	if l.controller.warnings.recordWarning(l.rt.Name, message, detail) {
		l.log.Warn(message, "err", err)
	}
}
