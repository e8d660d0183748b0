//go:build !linux

package start

// releaseProgramPages does nothing. Other systems remove unused pages of a program themselves when memory is short.
func releaseProgramPages() {}
