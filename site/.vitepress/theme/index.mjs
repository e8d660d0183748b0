// The default theme with the fonts of the reader's system, so that pages load no fonts.
import theme from 'vitepress/theme-without-fonts'
import './style.css'

export default theme
